//! A real `redis-server` on a free port of loopback.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server. It is stopped when this is dropped, and no other is.
pub struct Server {
    child: Child,
    pub port: u16,
    _dir: tempfile::TempDir,
}

impl Server {
    /// Starts a server with settings of its own.
    pub fn start(settings: &[&str]) -> Self {
        for _ in 0..20 {
            // The port may be lost to somebody else in between: then another one.
            if let Some(server) = Self::start_on(free_port(), settings) {
                return server;
            }
        }
        panic!("no redis-server could be started on any of 20 ports");
    }

    fn start_on(port: u16, settings: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(settings)
            .arg("--dir")
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("these tests need a redis-server on the PATH: {error}"));
        let mut server = Self { child, port, _dir: dir };
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
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        if stream.write_all(b"INFO server\r\nQUIT\r\n").is_err() {
            return false;
        }
        let pid = format!("process_id:{}", self.child.id());
        BufReader::new(stream).lines().map_while(Result::ok).any(|line| line == pid)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of loopback on which nobody listens at the moment.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
