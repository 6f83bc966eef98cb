//! The harness of the SQLite engine: a file in a folder of its own.

use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use refile_core::TaskId;
use refile_store::{SqliteStore, Store};
use rusqlite::Connection;

use crate::suite::kit::Harness;

pub(crate) struct SqliteHarness {
    folder: tempfile::TempDir,
    handles: Mutex<Vec<Weak<dyn Store>>>,
}

impl SqliteHarness {
    pub(crate) fn start() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), handles: Mutex::default() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join(".refile").join("fleet.db")
    }

    fn connect(&self) -> Connection {
        let conn = Connection::open(self.path()).unwrap();
        conn.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
        conn
    }
}

#[async_trait]
impl Harness for SqliteHarness {
    async fn store(&self) -> Arc<dyn Store> {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&self.path(), None).unwrap());
        self.handles.lock().unwrap().push(Arc::downgrade(&store));
        store
    }

    async fn swap_record(&self, task: &TaskId, bytes: &[u8]) -> Vec<u8> {
        let conn = self.connect();
        let read = "SELECT record FROM tasks WHERE id = ?1";
        let before = conn.query_row(read, [task.as_str()], |row| row.get(0)).unwrap();
        let write = "UPDATE tasks SET record = ?2 WHERE id = ?1";
        assert_eq!(conn.execute(write, rusqlite::params![task.as_str(), bytes]).unwrap(), 1);
        before
    }

    async fn corrupt_outcome(&self, task: &TaskId) {
        let sql = "UPDATE outcomes SET payload = x'01c1' WHERE task = ?1";
        assert_eq!(self.connect().execute(sql, [task.as_str()]).unwrap(), 1);
    }

    async fn restart(&self) {
        let open = self.handles.lock().unwrap().drain(..).filter(|handle| handle.strong_count() > 0).count();
        assert_eq!(open, 0, "handles are still open");
    }
}
