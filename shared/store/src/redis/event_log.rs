//! The event log of all partitions as one, and the cursors into it.
//!
//! A cursor has a part for each partition, joined by commas: the last entry that was read, with `/n` after it where only
//! the first `n` notices of it were.

use refile_core::decide::Notice;
use refile_core::{TaskId, Timestamp};

use crate::model::LoggedEvent;

/// An entry of a partition's log: its id and its fields.
pub(super) type Entry = (String, Vec<(String, String)>);

/// Where a partition's log was left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Place {
    entry: String,
    /// How many notices of the entry were read; nothing for all.
    notices: Option<usize>,
}

impl Place {
    /// Where `XRANGE` starts.
    pub(super) fn from(&self) -> String {
        match (self.entry.as_str(), self.notices) {
            ("", _) => "-".to_owned(),
            (entry, Some(_)) => entry.to_owned(),
            (entry, None) => format!("({entry}"),
        }
    }
}

/// Reads a cursor; partitions that it does not name are read from their start.
pub(super) fn parse(cursor: &str, partitions: usize) -> Vec<Place> {
    let mut places: Vec<Place> = cursor
        .split(',')
        .take(partitions)
        .map(|part| match part.split_once('/') {
            Some((entry, n)) => Place { entry: entry.to_owned(), notices: n.parse().ok() },
            None => Place { entry: part.to_owned(), notices: None },
        })
        .collect();
    places.resize(partitions, Place::default());
    places
}

fn print(places: &[Place]) -> String {
    let part = |place: &Place| match place.notices {
        Some(n) => format!("{}/{n}", place.entry),
        None => place.entry.clone(),
    };
    places.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Merges what was read of each partition from its place on, up to `max` notices. What cannot be read is passed over.
pub(super) fn merge(mut places: Vec<Place>, logs: Vec<Vec<Entry>>, max: usize) -> Vec<LoggedEvent> {
    let mut entries: Vec<(usize, Entry)> =
        logs.into_iter().enumerate().flat_map(|(p, log)| log.into_iter().map(move |entry| (p, entry))).collect();
    entries.sort_by_key(|(partition, (id, _))| (order(id), *partition));
    let mut merged = Vec::new();
    for (partition, (id, fields)) in entries {
        let read = if places[partition].entry == id { places[partition].notices.unwrap_or(usize::MAX) } else { 0 };
        let (at, task, notices) = content(&fields).unwrap_or_default();
        let count = notices.len();
        for (n, notice) in notices.into_iter().enumerate().skip(read) {
            if merged.len() == max {
                return merged;
            }
            places[partition] = Place { entry: id.clone(), notices: (n + 1 < count).then_some(n + 1) };
            if let Some(task) = &task {
                merged.push(LoggedEvent { cursor: print(&places), at, task: task.clone(), notice });
            }
        }
    }
    merged
}

/// An entry's id as numbers: the time in milliseconds, and the number within it.
fn order(id: &str) -> (u64, u64) {
    let (ms, number) = id.split_once('-').unwrap_or((id, "0"));
    (ms.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

fn content(fields: &[(String, String)]) -> Option<(Timestamp, Option<TaskId>, Vec<Notice>)> {
    let get = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str());
    let at = Timestamp(get("at")?.parse().ok()?);
    Some((at, TaskId::parse(get("t")?).ok(), serde_json::from_str(get("e")?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, task: &str, details: &[&str]) -> Entry {
        let notices: Vec<String> =
            details.iter().map(|d| format!(r#"{{"what":"submitted","attempt":0,"detail":"{d}"}}"#)).collect();
        let fields = [("t", task.to_owned()), ("at", "1".to_owned()), ("e", format!("[{}]", notices.join(",")))];
        (id.to_owned(), fields.map(|(name, value)| (name.to_owned(), value)).to_vec())
    }

    #[test]
    fn any_cursor_goes_on_where_it_was_taken() {
        let logs = [
            vec![entry("1-0", "a", &["1", "2"]), entry("9-0", "a", &["6"])],
            vec![entry("2-0", "b", &["3"]), entry("2-1", "b", &["4", "5"])],
        ];
        let read = |cursor: &str| {
            let places = parse(cursor, 2);
            let rest = |p: usize| {
                let from = places[p].from();
                let after = |id: &str| match from.strip_prefix('(') {
                    Some(last) => order(id) > order(last),
                    None => from == "-" || order(id) >= order(&from),
                };
                logs[p].iter().filter(|(id, _)| after(id)).cloned().collect()
            };
            merge(places.clone(), vec![rest(0), rest(1)], 10)
        };
        let all = read("");
        let details: Vec<_> = all.iter().map(|e| e.notice.detail.as_str()).collect();
        assert_eq!(details, ["1", "2", "3", "4", "5", "6"]);
        for (n, event) in all.iter().enumerate() {
            assert_eq!(read(&event.cursor), all[n + 1..].to_vec(), "{}", event.cursor);
        }
    }
}
