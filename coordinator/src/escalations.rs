//! What waits for a person.

use refile_core::TaskState;
use refile_store::{Filter, Store, StoreError};

use crate::view::{self, EscalationView};

/// Tasks that are read from the store at a time.
const PAGE: usize = 500;

/// The open escalations of all tasks, those that wait longest first.
pub async fn waiting(store: &dyn Store) -> Result<Vec<EscalationView>, StoreError> {
    let filter = Filter { states: vec![TaskState::Escalated], ..Filter::default() };
    let (mut open, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.list(&filter, cursor, PAGE).await?;
        for id in &page.undecodable {
            tracing::warn!(task = %id, "an escalated task was written by another version and cannot be read");
        }
        open.extend(page.tasks.iter().flat_map(|t| t.open_escalations().map(move |e| view::escalation(t, e))));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    open.sort_by_key(|e: &EscalationView| e.at);
    Ok(open)
}
