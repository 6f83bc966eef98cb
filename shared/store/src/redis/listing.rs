//! Tasks in order, newest first, over all partitions: the indexes of the states are merged by sequence number.

use refile_core::{TaskId, TaskState};

use super::RedisStore;
use super::replies::Record;
use super::topology::MOST_PARTITIONS;
use crate::Result;
use crate::model::{Cursor, Filter, Page};

/// A cursor is a sequence number times this, plus the partition: tasks of two partitions may have the same number, since
/// in a cluster each node counts by itself. Nothing else could name the place between them.
const PLACES: u64 = MOST_PARTITIONS as u64;

/// A line of an index.
struct Row {
    sequence: u64,
    partition: u32,
    id: TaskId,
}

impl Row {
    fn place(&self) -> Cursor {
        Cursor(self.sequence * PLACES + u64::from(self.partition))
    }
}

/// What a listing of a partition starts with, newest first: the greatest number that stands behind the cursor.
fn start(cursor: Option<Cursor>, partition: u32) -> String {
    let Some(Cursor(place)) = cursor else { return "+inf".to_owned() };
    let (sequence, last) = (place / PLACES, place % PLACES);
    // Of equal numbers the greater partition comes first.
    if u64::from(partition) < last { sequence.to_string() } else { format!("({sequence}") }
}

impl RedisStore {
    /// One page; see [`crate::Store::list`].
    pub(super) async fn page(&self, filter: &Filter, cursor: Option<Cursor>, limit: usize) -> Result<Page> {
        let mut page = Page::default();
        let mut before = cursor;
        let batch = limit.clamp(1, 500);
        loop {
            let (rows, is_last) = self.rows(&filter.states, before, batch).await?;
            let records = self.records(&rows).await?;
            for (row, record) in rows.into_iter().zip(records) {
                before = Some(row.place());
                match record.map(Record::decode) {
                    Some(Ok(task)) if filter.matches(&task) => page.tasks.push(task),
                    Some(Ok(_)) | None => {}
                    Some(Err(_)) => page.undecodable.push(row.id),
                }
                if page.tasks.len() == limit {
                    page.next = before;
                    return Ok(page);
                }
            }
            if is_last {
                return Ok(page);
            }
        }
    }

    /// The newest tasks before a cursor, by their indexes; and whether there are no more.
    async fn rows(&self, states: &[TaskState], before: Option<Cursor>, most: usize) -> Result<(Vec<Row>, bool)> {
        let states = if states.is_empty() { TaskState::ALL } else { states };
        let (mut rows, mut seen) = (Vec::new(), 0);
        for partition in 0..self.topology().partitions() {
            let (mut pipe, from) = (redis::pipe(), start(before, partition));
            for state in states {
                let key = self.key(partition, &format!("idx:{state}"));
                let command = pipe.cmd("ZREVRANGEBYSCORE").arg(key).arg(&from).arg("-inf");
                command.arg("WITHSCORES").arg("LIMIT").arg(0).arg(most);
            }
            let found: Vec<Vec<(String, u64)>> = self.link.query_pipe("list", &pipe).await?;
            let row = |(id, sequence): (String, u64)| Some(Row { sequence, partition, id: TaskId::parse(&id).ok()? });
            seen += found.iter().map(Vec::len).sum::<usize>();
            rows.extend(found.into_iter().flatten().filter_map(row));
        }
        rows.sort_unstable_by_key(|row| std::cmp::Reverse((row.sequence, row.partition)));
        rows.truncate(most);
        Ok((rows, seen < most))
    }

    async fn records(&self, rows: &[Row]) -> Result<Vec<Option<Record>>> {
        let ids: Vec<TaskId> = rows.iter().map(|row| row.id.clone()).collect();
        let mut records: Vec<Option<Record>> = rows.iter().map(|_| None).collect();
        for partition in 0..self.topology().partitions() {
            let here: Vec<usize> = (0..ids.len()).filter(|i| rows[*i].partition == partition).collect();
            for (i, record) in here.iter().zip(self.records_in(partition, here.iter().map(|i| &ids[*i])).await?) {
                records[*i] = record;
            }
        }
        Ok(records)
    }
}
