//! The one thread that writes. Requests that wait together share a transaction, each in a savepoint of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use tokio::sync::{Notify, oneshot};

use super::schema::{self, OpenError};

/// The most requests in one transaction.
const BATCH: usize = 64;

/// After so long a transaction takes no further request in: those that it has wait for its end.
const LONG: Duration = Duration::from_millis(3);

/// How often writes of other processes are looked for while somebody waits for one.
const POLL: Duration = Duration::from_millis(20);

/// What a request gets: the connection inside its transaction, and the time.
pub(super) struct Tx<'c> {
    /// Inside a transaction that holds the write lock.
    pub(super) conn: &'c Connection,
    /// The store's time, in milliseconds since 1970.
    pub(super) now: u64,
    /// The same in microseconds.
    pub(super) now_us: u64,
    /// Counters and turns as this request changes them; written once, at its end.
    pub(super) numbers: RefCell<Numbers>,
    /// Set where a job became ready.
    pub(super) wakes_claims: bool,
    /// Set where an outcome came in.
    pub(super) wakes_takes: bool,
}

/// Numbers that a request changes often.
#[derive(Default)]
pub(super) struct Numbers {
    /// What counters change by.
    pub(super) counts: BTreeMap<String, i64>,
    /// The turns of lanes, by name, as they are now.
    pub(super) turns: BTreeMap<String, i64>,
}

/// Who waits for what others write.
#[derive(Default)]
pub(super) struct Bell {
    /// Rings when jobs may be ready.
    pub(super) jobs: Notify,
    /// Rings when outcomes may be there.
    pub(super) outcomes: Notify,
    waiting: AtomicUsize,
}

/// Held while somebody waits.
pub(super) struct Waiting<'a>(&'a Bell);

impl Bell {
    /// Says that somebody waits; do it before looking.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Why a write failed; shared by all requests of a transaction that failed as a whole.
pub(super) type WriteError = Arc<rusqlite::Error>;

/// Told whether the transaction was committed.
type Reply = Box<dyn FnOnce(Result<(), WriteError>) + Send>;

/// Runs in a transaction, or is told why there is none. No reply where nobody waits for one.
type Work = Box<dyn FnOnce(Result<&mut Tx<'_>, WriteError>) -> Option<Reply> + Send>;

enum Request {
    /// Run this in a transaction.
    Write(Work),
    /// Open the file again, which was taken away or replaced.
    Reopen(oneshot::Sender<Result<String, OpenError>>),
}

/// The handle of the writing thread. Dropping it ends the thread and closes the file.
pub(super) struct Writer {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Opens the file and starts the thread. Gives the file's id, too.
    pub(super) fn start(path: PathBuf, bell: Arc<Bell>) -> Result<(Self, String), OpenError> {
        let conn = schema::open_writer(&path)?;
        let id = schema::read_id(&conn)?;
        let (requests, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("refile-sqlite".to_owned())
            .spawn(move || Thread { path, conn: Some(conn), inbox, bell, seen: None, looked: Instant::now() }.run())
            .map_err(|e| OpenError::Unsuitable(format!("no thread can be started: {e}")))?;
        Ok((Self { requests: Some(requests), thread: Some(thread) }, id))
    }

    /// Runs `work` in a transaction and gives its result once that is committed. `None` where the thread is gone.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Option<Result<T, WriteError>> {
        let (answer, answered) = oneshot::channel();
        let request = Request::Write(Box::new(move |tx: Result<&mut Tx<'_>, WriteError>| {
            if answer.is_closed() {
                return None;
            }
            let result = tx.and_then(|tx| in_savepoint(tx, work).map_err(Arc::new));
            let reply: Reply = Box::new(move |committed| {
                // Whoever asked may have gone; then nobody is to be told.
                let _ = answer.send(result.and_then(|value| committed.map(|()| value)));
            });
            Some(reply)
        }));
        self.requests.as_ref()?.send(request).ok()?;
        answered.await.ok()
    }

    /// Opens the file again and gives its id.
    pub(super) async fn reopen(&self) -> Option<Result<String, OpenError>> {
        let (answer, answered) = oneshot::channel();
        self.requests.as_ref()?.send(Request::Reopen(answer)).ok()?;
        answered.await.ok()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // It ends after the requests that are there; a panic in it was told to those who waited.
            let _ = thread.join();
        }
    }
}

/// One bad request does not undo its neighbours.
fn in_savepoint<T>(tx: &mut Tx<'_>, work: impl FnOnce(&mut Tx<'_>) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    tx.conn.prepare_cached("SAVEPOINT request")?.execute([])?;
    let result = work(tx).and_then(|value| super::lanes::write_numbers(tx).map(|()| value));
    tx.numbers.take();
    // SQLite undoes the whole transaction by itself where the disk fails.
    if !tx.conn.is_autocommit() {
        if result.is_err() {
            tx.conn.prepare_cached("ROLLBACK TO request")?.execute([])?;
        }
        tx.conn.prepare_cached("RELEASE request")?.execute([])?;
    }
    result
}

struct Thread {
    path: PathBuf,
    /// Nothing only while the file could not be opened again.
    conn: Option<Connection>,
    inbox: Receiver<Request>,
    bell: Arc<Bell>,
    /// The last `data_version`: it moves with the commits of other processes only, since nobody else here writes.
    seen: Option<i64>,
    looked: Instant,
}

impl Thread {
    fn run(mut self) {
        loop {
            let first = if self.bell.is_waited_for() {
                match self.inbox.recv_timeout(POLL.saturating_sub(self.looked.elapsed())) {
                    Ok(request) => Some(request),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            } else {
                match self.inbox.recv() {
                    Ok(request) => Some(request),
                    Err(_) => return,
                }
            };
            if let Some(request) = first {
                self.serve(request);
            }
            if self.looked.elapsed() >= POLL {
                self.look();
            }
        }
    }

    /// Serves a request and those that came in meanwhile.
    fn serve(&mut self, first: Request) {
        let mut next = Some(first);
        let mut batch = Vec::new();
        while let Some(request) = next.take() {
            match request {
                Request::Write(work) => batch.push(work),
                Request::Reopen(answer) => {
                    self.write(std::mem::take(&mut batch));
                    // Whoever asked may have gone.
                    let _ = answer.send(self.reopen());
                }
            }
            if batch.len() < BATCH {
                next = self.inbox.try_recv().ok();
            }
        }
        self.write(batch);
    }

    fn write(&mut self, batch: Vec<Work>) {
        let mut left = batch.into_iter();
        while left.len() > 0 {
            let mut replies: Vec<Reply> = Vec::new();
            let result = match &self.conn {
                Some(conn) => transaction(conn, &mut left, &mut replies),
                None => Err(rusqlite::Error::InvalidPath(self.path.clone())),
            };
            match result {
                Ok((wakes_claims, wakes_takes)) => {
                    for reply in replies {
                        reply(Ok(()));
                    }
                    if wakes_claims {
                        self.bell.jobs.notify_waiters();
                    }
                    if wakes_takes {
                        self.bell.outcomes.notify_waiters();
                    }
                }
                Err(error) => {
                    let error = Arc::new(error);
                    if replies.is_empty() {
                        // No transaction could be begun: none of those who are left gets one.
                        replies.extend(left.by_ref().filter_map(|work| work(Err(Arc::clone(&error)))));
                    }
                    for reply in replies {
                        reply(Err(Arc::clone(&error)));
                    }
                }
            }
        }
    }

    /// Rings where another process has written.
    fn look(&mut self) {
        self.looked = Instant::now();
        let version = self.conn.as_ref().and_then(|c| c.query_row("PRAGMA data_version", [], |row| row.get(0)).ok());
        if version != self.seen {
            self.seen = version;
            self.bell.jobs.notify_waiters();
            self.bell.outcomes.notify_waiters();
        }
    }

    fn reopen(&mut self) -> Result<String, OpenError> {
        // The old connection must be closed first: closing it removes the log of whatever lies at the path.
        self.conn = None;
        let conn = schema::open_writer(&self.path)?;
        let id = schema::read_id(&conn)?;
        self.conn = Some(conn);
        self.seen = None;
        Ok(id)
    }
}

/// Runs requests in one transaction, until all are done or SQLite has undone it. Says who is to be woken.
fn transaction(
    conn: &Connection,
    left: &mut impl Iterator<Item = Work>,
    replies: &mut Vec<Reply>,
) -> rusqlite::Result<(bool, bool)> {
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let started = Instant::now();
    let (now, now_us) = now();
    let mut tx = Tx { conn, now, now_us, numbers: RefCell::default(), wakes_claims: false, wakes_takes: false };
    for work in left {
        replies.extend(work(Ok(&mut tx)));
        if conn.is_autocommit() || started.elapsed() >= LONG {
            break;
        }
    }
    // Where the transaction is gone this fails, and so do all of its requests, as they must.
    let committed = conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
    match committed {
        Ok(_) => Ok((tx.wakes_claims, tx.wakes_takes)),
        Err(error) => {
            if !conn.is_autocommit() {
                conn.execute_batch("ROLLBACK")?;
            }
            Err(error)
        }
    }
}

/// The time, in milliseconds and in microseconds.
pub(super) fn now() -> (u64, u64) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_millis() as u64, since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_fails_leaves_nothing_and_harms_no_neighbour() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.db");
        let writer = Writer::start(path.clone(), Arc::default()).ok().unwrap().0;
        let insert = |tx: &Tx<'_>, key| tx.conn.execute("INSERT INTO counts VALUES (?1, 1)", [key]);
        let (first, bad, last) = tokio::join!(
            writer.write(move |tx| insert(tx, "first")),
            writer.write(move |tx| insert(tx, "half").and_then(|_| tx.conn.execute("nonsense", []))),
            writer.write(move |tx| insert(tx, "last")),
        );
        assert_eq!(first.unwrap().unwrap(), 1);
        assert!(bad.unwrap().unwrap_err().to_string().contains("nonsense"));
        assert_eq!(last.unwrap().unwrap(), 1);
        let conn = schema::open_reader(&path).unwrap();
        let keys =
            super::super::sql::all(&conn, "SELECT key FROM counts ORDER BY key", [], |row| row.get::<_, String>(0));
        assert_eq!(keys.unwrap(), ["first", "last"]);
    }
}
