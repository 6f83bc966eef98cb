//! A real `redis-server` of the test's own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Settings of a server that keeps what it is told. What a crash of the server itself may lose is not the subject here:
/// each write is on disk before it is confirmed.
pub const DURABLE: [&str; 8] =
    ["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"];

/// A running server with its folder. It is stopped when this is dropped, and no other is.
pub struct Redis {
    folder: tempfile::TempDir,
    child: Child,
    port: u16,
    settings: Vec<String>,
}

impl Redis {
    /// Starts a server that keeps what it is told, and waits until it answers.
    pub fn start() -> Self {
        Self::start_with(&DURABLE)
    }

    /// Starts a server with settings of its own.
    pub fn start_with(settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let port = free_port();
            // The port may be lost to somebody else in between: then another one.
            if let Some(child) = start_on(port, folder.path(), &settings) {
                return Self { folder, child, port, settings };
            }
        }
        panic!("no redis-server could be started on any of 20 ports");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again with the same files on the same port.
    pub fn start_again(&mut self) {
        self.child =
            start_on(self.port, self.folder.path(), &self.settings).expect("redis-server starts again on its port");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server; nothing where it ended at once.
fn start_on(port: u16, folder: &Path, settings: &[String]) -> Option<Child> {
    let mut child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(settings)
        .arg("--dir")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("these tests need a redis-server on the PATH: install it");
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        if is_it(port, child.id()) {
            return Some(child);
        }
        std::thread::yield_now();
    }
    let _ = child.kill();
    let _ = child.wait();
    panic!("redis-server does not answer on port {port}");
}

/// Whether the port answers, and it is this process that does.
fn is_it(port: u16, pid: u32) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n*1\r\n$4\r\nQUIT\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    // While it loads its file it answers with an error.
    ask().is_ok_and(|said| said.starts_with("+PONG") && said.contains(&format!("process_id:{pid}\r")))
}

/// A port of loopback on which nobody listens at the moment.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
