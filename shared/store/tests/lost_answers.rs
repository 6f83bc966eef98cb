//! A Redis server whose answers get lost: what was carried out is not carried out again, and nobody is told that it was not.

#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, reason = "a test may panic; a part of the kit is enough")]

mod suite {
    pub(crate) mod kit;
}
#[path = "suite/redis_server.rs"]
mod redis_server;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use redis_server::RedisHarness;
use refile_core::{Policy, TaskState};
use refile_store::{ClaimRequest, Committed, Limits, OpenOptions, RedisStore, Reported, Store};
use suite::kit::*;

/// Passes on what is said to a server. Of a request that holds certain bytes the answer is lost: the server has carried it
/// out, and the connection ends.
#[derive(Clone)]
struct Lossy {
    port: u16,
    marker: Arc<Mutex<Option<Vec<u8>>>>,
    lost: Arc<AtomicUsize>,
}

impl Lossy {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let lossy = Self { port: listener.local_addr().unwrap().port(), marker: Arc::default(), lost: Arc::default() };
        let of = lossy.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let is_lost = Arc::new(Mutex::new(false));
                let (up, down, of) =
                    ((client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client), of.clone());
                let noted = is_lost.clone();
                std::thread::spawn(move || of.requests(up.0, up.1, &noted));
                std::thread::spawn(move || answers(down.0, down.1, &is_lost));
            }
        });
        lossy
    }

    /// Loses the answer to the next request that holds these bytes.
    fn lose(&self, marker: &[u8]) {
        *self.marker.lock().unwrap() = Some(marker.to_vec());
    }

    fn requests(&self, mut client: TcpStream, mut server: TcpStream, is_lost: &Mutex<bool>) {
        let mut bytes = vec![0; 1 << 20];
        while let Ok(n @ 1..) = client.read(&mut bytes) {
            {
                let mut marker = self.marker.lock().unwrap();
                if marker.as_ref().is_some_and(|m| bytes[..n].windows(m.len()).any(|w| w == m)) {
                    *marker = None;
                    *is_lost.lock().unwrap() = true;
                    self.lost.fetch_add(1, Ordering::SeqCst);
                }
            }
            if server.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
    }
}

fn answers(mut server: TcpStream, mut client: TcpStream, is_lost: &Mutex<bool>) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(n @ 1..) = server.read(&mut bytes) {
        if *is_lost.lock().unwrap() {
            let _ = client.shutdown(std::net::Shutdown::Both);
            return;
        }
        if client.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
}

/// A server, what loses its answers, and a store behind it.
async fn behind() -> (RedisHarness, Lossy, Arc<dyn Store>) {
    let harness = RedisHarness::start();
    let port: u16 = harness.url().trim_end_matches("/0").rsplit(':').next().unwrap().parse().unwrap();
    let lossy = Lossy::before(port);
    let url = format!("redis://127.0.0.1:{}/0", lossy.port);
    let store: Arc<dyn Store> = Arc::new(RedisStore::open(&url, OpenOptions::default()).await.unwrap());
    (harness, lossy, store)
}

async fn told(store: &Arc<dyn Store>) -> usize {
    store.events("", 1_000).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_whose_answer_is_lost_is_one() {
    let (_harness, lossy, store) = behind().await;
    add(&store, &["before"]).await;
    let each = told(&store).await;
    lossy.lose(b"lost-task");
    let added = store.submit(&[submission("lost-task", new_task("lost-task"))]).await.unwrap();
    assert_eq!((lossy.lost.load(Ordering::SeqCst), added[0].added), (1, true));
    assert_eq!(told(&store).await, 2 * each, "it is told once");
    assert_eq!(counted(&store, "tasks_submitted_total", &[]).await, 2);
    assert_eq!(claim(&store, "w", 9, LONG).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_whose_answers_are_lost_is_reported_and_decided_once() {
    let (_harness, lossy, store) = behind().await;
    add(&store, &["a"]).await;
    let claim = claim_one(&store, "w", LONG).await;
    let outcome = refile_store::Report { lease: claim.lease.clone(), outcome: coded("the-head") };
    lossy.lose(b"the-head");
    assert_eq!(store.report(&[outcome]).await.unwrap(), [Reported::Accepted], "it was handed in");
    assert_eq!(lossy.lost.load(Ordering::SeqCst), 1);
    assert_eq!(store.stats().await.unwrap().outcomes, 1);

    let taken = take_one(&store, "c").await;
    let before = told(&store).await;
    let commit = decided(&taken, &Policy::default());
    let lines = commit.notices.len();
    assert!(lines > 0);
    lossy.lose(b"the-head");
    assert_eq!(commit_one(&store, commit).await, Committed::Applied);
    assert_eq!(lossy.lost.load(Ordering::SeqCst), 2);
    let found = task(&store, "a").await;
    assert_eq!((found.version, found.task.state), (2, TaskState::Open));
    assert_eq!(told(&store).await, before + lines, "it is told once");
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.outcomes, stats.depth.values().sum::<u64>()), (0, 1));
    assert_eq!(counted(&store, "stale_outcomes_total", &[]).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_whose_answer_is_lost_is_taken_once_and_given_back() {
    let (_harness, lossy, store) = behind().await;
    add(&store, &["a", "b"]).await;
    let limits = Arc::new(Limits { each_repository: Some(1), ..Limits::default() });
    let ask = ClaimRequest { limits, ..request("w", 9, LONG) };
    lossy.lose(b"$4\r\ntake\r\n");
    let first = store.claim(&ask).await.unwrap();
    assert_eq!((lossy.lost.load(Ordering::SeqCst), first.len()), (1, 1));
    assert!(store.claim(&ask).await.unwrap().is_empty(), "the only permit is taken");
    report(&store, &first[0].lease, coded("h")).await;
    assert_eq!(store.claim(&ask).await.unwrap().len(), 1, "the permit is there again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_is_given_back_though_the_answer_is_lost() {
    let (_harness, lossy, store) = behind().await;
    add(&store, &["a", "b"]).await;
    let limits = Arc::new(Limits { each_repository: Some(1), ..Limits::default() });
    let ask = ClaimRequest { limits, ..request("w", 9, LONG) };
    let first = store.claim(&ask).await.unwrap();
    lossy.lose(b"$4\r\nfree\r\n");
    report(&store, &first[0].lease, coded("h")).await;
    assert_eq!(lossy.lost.load(Ordering::SeqCst), 1);
    assert_eq!(store.claim(&ask).await.unwrap().len(), 1);
}
