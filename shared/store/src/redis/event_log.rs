//! The event log of all partitions as one, and the cursors into it.
//!
//! An entry holds the lines of everything that was committed in one call. A cursor has a part for each partition, joined
//! by commas: the last entry that was read, with `/n` after it where only the first `n` lines of it were.

use refile_core::decide::Notice;
use refile_core::{TaskId, Timestamp};

use crate::model::LoggedEvent;

/// An entry of a partition's log: its id and its fields.
pub(super) type Entry = (String, Vec<(String, String)>);

/// Where a partition's log was left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Place {
    entry: String,
    /// How many lines of the entry were read; nothing for all.
    lines: Option<usize>,
}

impl Place {
    /// Where `XRANGE` starts.
    pub(super) fn from(&self) -> String {
        match (self.entry.as_str(), self.lines) {
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
            Some((entry, n)) => Place { entry: entry.to_owned(), lines: n.parse().ok() },
            None => Place { entry: part.to_owned(), lines: None },
        })
        .collect();
    places.resize(partitions, Place::default());
    places
}

fn print(places: &[Place]) -> String {
    let part = |place: &Place| match place.lines {
        Some(n) => format!("{}/{n}", place.entry),
        None => place.entry.clone(),
    };
    places.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Merges what was read of each partition from its place on, up to `max` lines. What cannot be read is passed over.
pub(super) fn merge(mut places: Vec<Place>, logs: Vec<Vec<Entry>>, max: usize) -> Vec<LoggedEvent> {
    let mut entries: Vec<(usize, Entry)> =
        logs.into_iter().enumerate().flat_map(|(p, log)| log.into_iter().map(move |entry| (p, entry))).collect();
    entries.sort_by_key(|(partition, (id, _))| (order(id), *partition));
    let mut merged = Vec::new();
    for (partition, (id, fields)) in entries {
        let read = if places[partition].entry == id { places[partition].lines.unwrap_or(usize::MAX) } else { 0 };
        let lines: Vec<_> = fields.iter().flat_map(|(_count, told)| content(told)).collect();
        let count = lines.len();
        for (n, (at, task, notice)) in lines.into_iter().enumerate().skip(read) {
            if merged.len() == max {
                return merged;
            }
            places[partition] = Place { entry: id.clone(), lines: (n + 1 < count).then_some(n + 1) };
            merged.push(LoggedEvent { cursor: print(&places), at, task, notice });
        }
    }
    merged
}

/// An entry's id as numbers: the time in milliseconds, and the number within it.
fn order(id: &str) -> (u64, u64) {
    let (ms, number) = id.split_once('-').unwrap_or((id, "0"));
    (ms.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

/// The lines of one call: of each commit its task, its time, and its notices. What cannot be read is passed over.
fn content(told: &str) -> Vec<(Timestamp, TaskId, Notice)> {
    let commits: Vec<serde_json::Value> = serde_json::from_str(told).unwrap_or_default();
    let read = |commit| serde_json::from_value::<(TaskId, Timestamp, Vec<Notice>)>(commit).ok();
    let commits = commits.into_iter().filter_map(read);
    commits.flat_map(|(task, at, notices)| notices.into_iter().map(move |notice| (at, task.clone(), notice))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, task: &str, details: &[&str]) -> Entry {
        let notices: Vec<String> =
            details.iter().map(|d| format!(r#"{{"what":"submitted","attempt":0,"detail":"{d}"}}"#)).collect();
        (id.to_owned(), vec![("2".to_owned(), format!(r#"[["{task}",1,[{}]]]"#, notices.join(",")))])
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
