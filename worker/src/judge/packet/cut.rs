//! Makes sections fit: whole items, then whole pieces of an item, and a list of what was left out.

/// Something that is kept whole where it fits: a file of a diff, a changed file, a gate's output, a text.
pub(super) struct Item<'t> {
    /// What it is called where it is left out.
    pub(super) name: String,
    /// What stands before its pieces; by itself it says nothing.
    pub(super) head: String,
    /// What it may be cut between.
    pub(super) pieces: Vec<&'t str>,
    /// What a piece is called, in the plural; `bytes` where pieces mean nothing to a reader.
    pub(super) unit: &'static str,
}

impl Item<'_> {
    /// How many bytes it takes.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.pieces.iter().map(|piece| piece.len()).sum::<usize>()
    }
}

/// The items in at most `room` bytes, and what was left out of which. As many as can be are there whole, the small ones
/// first; what room is left goes to parts of the others.
pub(super) fn fit(items: &[Item<'_>], mut room: usize) -> (String, Vec<String>) {
    let mut by_size: Vec<usize> = (0..items.len()).collect();
    by_size.sort_by_key(|at| items[*at].len());
    let mut is_whole = vec![false; items.len()];
    for at in by_size {
        if items[at].len() > room {
            break;
        }
        room -= items[at].len();
        is_whole[at] = true;
    }
    let (mut kept, mut left_out) = (String::new(), Vec::new());
    for (item, is_whole) in items.iter().zip(is_whole) {
        let shown = if is_whole { item.pieces.len() } else { pieces_within(item, room) };
        let (here, missing) = item.pieces.split_at(shown);
        // A head without a piece says nothing, unless there is no more to it.
        if !is_whole && shown == 0 {
            left_out.push(format!("all of {}", item.name));
            continue;
        }
        kept.push_str(&item.head);
        kept.extend(here.iter().copied());
        if !is_whole {
            room -= item.head.len() + here.iter().map(|piece| piece.len()).sum::<usize>();
            let count = |pieces: &[&str]| match item.unit {
                "bytes" => pieces.iter().map(|piece| piece.len()).sum(),
                _ => pieces.len(),
            };
            let (missing, of) = (count(missing), count(&item.pieces));
            left_out.push(format!("{missing} of {of} {} of {}", item.unit, item.name));
        }
    }
    (kept, left_out)
}

/// How many of an item's pieces fit behind its head.
fn pieces_within(item: &Item<'_>, room: usize) -> usize {
    let mut length = item.head.len();
    let fits = |piece: &&&str| {
        length += piece.len();
        length <= room
    };
    item.pieces.iter().take_while(fits).count()
}

/// Divides room by weight among those that need some. Nobody gets more than it needs, and what one does not need goes to
/// the others: where all fit, all get what they need.
pub(super) fn shares(needs: &[(usize, usize)], room: usize) -> Vec<usize> {
    let room = room.min(needs.iter().map(|(need, _)| need).sum());
    let mut given: Vec<Option<usize>> = vec![None; needs.len()];
    loop {
        let open =
            |given: &[Option<usize>]| given.iter().enumerate().filter(|(_, g)| g.is_none()).map(|(i, _)| i).collect();
        let left = room.saturating_sub(given.iter().flatten().sum());
        let waiting: Vec<usize> = open(&given);
        let weights: usize = waiting.iter().map(|i| needs[*i].1).sum();
        let share = |i: usize| left * needs[i].1 / weights.max(1);
        let served: Vec<usize> = waiting.iter().copied().filter(|i| needs[*i].0 <= share(*i)).collect();
        if served.is_empty() {
            return (0..needs.len()).map(|i| given[i].unwrap_or_else(|| share(i))).collect();
        }
        for i in served {
            given[i] = Some(needs[i].0);
        }
    }
}

/// The text in pieces, each of which but the first begins with a line that begins so.
pub(super) fn pieces<'t>(text: &'t str, start: &str) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let (mut from, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        if line.starts_with(start) && at > from {
            pieces.push(&text[from..at]);
            from = at;
        }
        at += line.len();
    }
    if from < text.len() {
        pieces.push(&text[from..]);
    }
    pieces
}

/// The text in lines, and a line that is long in parts: prose may stand on a single one.
pub(super) fn lines_and_parts(text: &str) -> Vec<&str> {
    const PART: usize = 200;
    let mut parts = Vec::new();
    for mut line in text.split_inclusive('\n') {
        while line.len() > PART {
            let (part, rest) = line.split_at(line.floor_char_boundary(PART));
            parts.push(part);
            line = rest;
        }
        parts.push(line);
    }
    parts
}
