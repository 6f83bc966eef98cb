//! The beginning and the end of an output that may be of any length, and the whole of one in a file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Command, Exit, Finished, Veil};

/// How much of an output is kept, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From its beginning.
    pub head: usize,
    /// From its end.
    pub tail: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head: 1 << 20, tail: 4 << 20 }
    }
}

/// Keeps the beginning and the end of what it is given.
#[derive(Debug)]
pub(super) struct Capture {
    limits: Limits,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: usize,
}

impl Capture {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, head: Vec::new(), tail: VecDeque::new(), left_out: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = self.limits.head.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.limits.tail);
        self.tail.drain(..over);
        self.left_out += over;
    }

    pub(super) fn is_cut(&self) -> bool {
        self.left_out > 0
    }

    /// How much it was given.
    fn length(&self) -> usize {
        self.head.len() + self.tail.len() + self.left_out
    }

    /// What is kept, with a line that says how much is not.
    fn kept(&self) -> Vec<u8> {
        [&self.head[..], self.gap().as_bytes(), &self.tail.iter().copied().collect::<Vec<u8>>()].concat()
    }

    fn gap(&self) -> String {
        if self.left_out > 0 { gap(self.left_out as u64) } else { String::new() }
    }

    /// The same, and nothing of it is kept any longer.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let mut kept = std::mem::take(&mut self.head);
        kept.extend_from_slice(self.gap().as_bytes());
        kept.extend(std::mem::take(&mut self.tail));
        kept
    }
}

/// The most that is written to the file of an output, in bytes: a command that prints without end must not fill the disk.
const MOST_IN_FILE: u64 = 256 << 20;

/// A file that takes the output of commands whole, both streams as they came, without secrets.
#[derive(Debug, Clone)]
pub struct Whole(Arc<Mutex<InFile>>);

#[derive(Debug)]
struct InFile {
    file: File,
    room: u64,
    left_out: u64,
    /// Whether what was written last ends a line.
    ends_line: bool,
    failed: Option<std::io::Error>,
}

impl Whole {
    /// In a new file.
    pub fn in_file(path: &Path) -> std::io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        Ok(Self(Arc::new(Mutex::new(InFile { file, room: MOST_IN_FILE, left_out: 0, ends_line: true, failed: None }))))
    }

    fn in_file_now(&self) -> MutexGuard<'_, InFile> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, piece: &[u8]) {
        let mut to = self.in_file_now();
        let (fits, over) = piece.split_at((to.room as usize).min(piece.len()));
        to.left_out += over.len() as u64;
        to.room -= fits.len() as u64;
        to.write(fits);
    }

    /// Adds words of the worker's own on a line of their own, whatever room there is.
    pub fn note(&self, words: &str) {
        let mut to = self.in_file_now();
        let left_out = std::mem::take(&mut to.left_out);
        if left_out > 0 {
            to.write(gap(left_out).as_bytes());
        }
        if !to.ends_line && !words.is_empty() {
            to.write(b"\n");
        }
        to.write(words.as_bytes());
    }

    /// The file, to be read from its beginning. An error tells why not all of it could be written.
    pub fn finish(self) -> std::io::Result<File> {
        self.note("");
        let mut to = self.in_file_now();
        if let Some(error) = to.failed.take() {
            return Err(error);
        }
        std::io::Seek::rewind(&mut to.file)?;
        to.file.try_clone()
    }
}

impl InFile {
    fn write(&mut self, bytes: &[u8]) {
        if let (Some(last), None) = (bytes.last(), &self.failed) {
            self.ends_line = *last == b'\n';
            self.failed = self.file.write_all(bytes).err();
        }
    }
}

/// The line that says how much was left out.
fn gap(bytes: u64) -> String {
    format!("\n[... {bytes} bytes left out ...]\n")
}

/// The output of a command while it comes: both streams, each by itself and as they came, without secrets.
pub(crate) struct Output(Mutex<Streams>);

struct Streams {
    stdout: Capture,
    stderr: Capture,
    both: Capture,
    whole: Option<Whole>,
    stdout_veil: Veil,
    stderr_veil: Veil,
}

impl Streams {
    fn stdout(&mut self, piece: &[u8]) {
        self.stdout.push(piece);
        self.both(piece);
    }

    fn stderr(&mut self, piece: &[u8]) {
        self.stderr.push(piece);
        self.both(piece);
    }

    fn both(&mut self, piece: &[u8]) {
        self.both.push(piece);
        if let Some(whole) = &self.whole {
            whole.push(piece);
        }
    }
}

impl Output {
    pub(crate) fn of(command: &Command) -> Self {
        Self(Mutex::new(Streams {
            stdout: Capture::new(command.stdout_limits.unwrap_or(command.limits)),
            stderr: Capture::new(command.limits),
            both: Capture::new(command.limits),
            whole: command.whole.clone(),
            stdout_veil: command.secrets.veil(),
            stderr_veil: command.secrets.veil(),
        }))
    }

    /// The streams. A thread that panicked while it held the lock left whole values behind.
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stdout(&self, piece: &[u8]) {
        let mut streams = self.streams();
        let piece = streams.stdout_veil.pass(piece);
        streams.stdout(&piece);
    }

    pub(super) fn stderr(&self, piece: &[u8]) {
        let mut streams = self.streams();
        let piece = streams.stderr_veil.pass(piece);
        streams.stderr(&piece);
    }

    /// What came so far and how much that was; nothing where no more came since it was this much.
    pub(crate) fn so_far(&self, known: usize) -> Option<(usize, String)> {
        let streams = self.streams();
        let length = streams.both.length();
        (length != known).then(|| (length, String::from_utf8_lossy(&streams.both.kept()).into_owned()))
    }

    pub(super) fn finish(&self, exit: Exit, wall: Duration) -> Finished {
        let mut streams = self.streams();
        let (last_out, last_err) = (streams.stdout_veil.end(), streams.stderr_veil.end());
        streams.stdout(&last_out);
        streams.stderr(&last_err);
        Finished {
            exit,
            cut: streams.both.is_cut() || streams.stdout.is_cut(),
            stdout_cut: streams.stdout.is_cut(),
            stdout: streams.stdout.take(),
            stderr: streams.stderr.take(),
            output: streams.both.take(),
            wall,
        }
    }
}
