//! The harness of the Redis engine: a real `redis-server` of its own, on a free port, with an append-only file.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::{Connection, ConnectionLike, Value};
use refile_core::TaskId;
use refile_store::{OpenOptions, RedisStore, Store};

use crate::suite::kit::Harness;

/// The only partition of the tests' namespace.
const PREFIX: &str = "refile:{0}";

pub(crate) struct RedisHarness {
    folder: tempfile::TempDir,
    server: Mutex<Server>,
}

/// A running server. It is stopped when this is dropped, and no other is.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a server on a free port and waits until it answers.
    fn start(folder: &Path) -> Self {
        for _ in 0..20 {
            let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            // The port may be lost to somebody else in between: then another one.
            if let Some(server) = Self::start_on(port, folder, &[]) {
                return server;
            }
        }
        panic!("no redis-server could be started on any of 20 ports");
    }

    /// Starts a server with these arguments besides. `None` where it ends at once, since its port is taken.
    pub(crate) fn start_on(port: u16, folder: &Path, besides: &[&str]) -> Option<Self> {
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"])
            .arg("--dir")
            .arg(folder)
            .args(besides)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("these tests need a redis-server on the PATH: install it");
        let mut server = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if server.child.try_wait().unwrap().is_some() {
                return None;
            }
            if server.is_mine() {
                return Some(server);
            }
            std::thread::yield_now();
        }
        panic!("redis-server {} does not answer", server.child.id());
    }

    /// Whether the port answers, and it is this server that does.
    fn is_mine(&self) -> bool {
        let Ok(mut conn) = self.try_connect() else { return false };
        // While it loads its file it answers with an error.
        let pong: redis::RedisResult<String> = redis::cmd("PING").query(&mut conn);
        let info: redis::RedisResult<String> = redis::cmd("INFO").arg("server").query(&mut conn);
        let pid = format!("process_id:{}\r", self.child.id());
        pong.is_ok() && info.is_ok_and(|text| text.contains(&pid))
    }

    pub(crate) fn try_connect(&self) -> redis::RedisResult<Connection> {
        redis::Client::open(self.url())?.get_connection_with_timeout(Duration::from_secs(5))
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Ends it in good order: everything is in its file.
    pub(crate) fn stop(&mut self) {
        // It answers by going away.
        let _: redis::RedisResult<()> = redis::cmd("SHUTDOWN").query(&mut self.try_connect().unwrap());
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RedisHarness {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Mutex::new(Server::start(folder.path()));
        Self { folder, server }
    }

    pub(crate) fn url(&self) -> String {
        self.server.lock().unwrap().url()
    }

    pub(crate) fn connect(&self) -> Connection {
        self.server.lock().unwrap().try_connect().unwrap()
    }
}

#[async_trait]
impl Harness for RedisHarness {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(RedisStore::open(&self.url(), OpenOptions::default()).await.unwrap())
    }

    async fn swap_record(&self, task: &TaskId, bytes: &[u8]) -> Vec<u8> {
        swap_record(&mut self.connect(), PREFIX, task, bytes)
    }

    async fn corrupt_outcome(&self, task: &TaskId) {
        corrupt_outcome(&mut self.connect(), PREFIX, task);
    }

    async fn restart(&self) {
        let mut server = self.server.lock().unwrap();
        server.stop();
        let port = server.port;
        *server = Server::start_on(port, self.folder.path(), &[]).expect("the server starts again on its port");
    }
}

/// Puts these bytes in place of a task's record in this partition and gives those that were there.
pub(crate) fn swap_record(conn: &mut impl ConnectionLike, prefix: &str, task: &TaskId, bytes: &[u8]) -> Vec<u8> {
    let key = format!("{prefix}:records");
    let before: Vec<u8> = redis::cmd("HGET").arg(&key).arg(task.as_str()).query(conn).unwrap();
    // The version stands before the record.
    let (version, record) = before.split_at(8);
    let value = [version, bytes].concat();
    let added: i64 = redis::cmd("HSET").arg(&key).arg(task.as_str()).arg(value).query(conn).unwrap();
    assert_eq!(added, 0, "the record was there");
    record.to_vec()
}

/// Damages the payload of the task's only outcome in this partition.
pub(crate) fn corrupt_outcome(conn: &mut impl ConnectionLike, prefix: &str, task: &TaskId) {
    let key = format!("{prefix}:outcomes");
    let entries: Vec<(String, Vec<Value>)> = redis::cmd("XRANGE").arg(&key).arg("-").arg("+").query(conn).unwrap();
    let name = format!("{task}/");
    let is_of_task = |field: &Value| matches!(field, Value::BulkString(text) if text.starts_with(name.as_bytes()));
    let (id, mut fields) = entries.into_iter().find(|(_, fields)| is_of_task(&fields[0])).unwrap();
    fields[1] = Value::BulkString(vec![1, 0xc1]);
    let mut copy = redis::cmd("XADD");
    copy.arg(&key).arg("*");
    for field in fields {
        let Value::BulkString(bytes) = field else { panic!("{field:?} is no text") };
        copy.arg(bytes);
    }
    let _: String = copy.query(conn).unwrap();
    let gone: i64 = redis::cmd("XDEL").arg(&key).arg(id).query(conn).unwrap();
    assert_eq!(gone, 1);
}
