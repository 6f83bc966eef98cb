//! A real `redis-server` of the test's own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use std::io::{Read, Write};
use std::net::TcpStream;

/// A running server with its folder. It is stopped when this is dropped, and no other is.
pub struct Redis {
    folder: tempfile::TempDir,
    child: Child,
    port: u16,
}

impl Redis {
    /// Starts a server on a free port and waits until it answers.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            // The port may be lost to somebody else in between: then another one.
            if let Some(child) = start_on(port, folder.path()) {
                return Self { folder, child, port };
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
        self.child = start_on(self.port, self.folder.path()).expect("redis-server starts again on its port");
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
fn start_on(port: u16, folder: &Path) -> Option<Child> {
    // What a crash of the server itself may lose is not the subject here: each write is on disk before it is confirmed.
    let mut child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .args(["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"])
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
