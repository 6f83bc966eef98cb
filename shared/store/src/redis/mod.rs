//! The engine on Redis or Valkey, Streams, for fleets on many machines.
//!
//! Every transition is one Lua script on one partition; `lua/prelude.lua` tells the layout of the keys, and each script
//! its arguments and result. Scripts take lists: what an item costs is a few commands inside, not a round trip. Time is
//! the server's.
//!
//! # Layout
//! - `connection`: connecting, reconnecting, and what counts as "away"
//! - `topology`: which partition a task lies in
//! - `scripts`: the scripts by name
//! - `setup`: what a server must be like before it is used
//! - `operations`: the [`crate::Store`] itself
//! - `commits`: transitions as the scripts take them
//! - `partition`: the work on one partition: claims, reports, outcomes that are taken
//! - `listing`: tasks in order, over all partitions
//! - `pauses`: pauses, and calls to providers that are let through
//! - `permits`: what keeps jobs under the limits
//! - `watching`: jobs, events, presence, what is set aside, and whether anything was lost
//! - `event_log`: the event logs of the partitions as one
//! - `replies`: from the scripts' replies to the model
//! - [`mod@bench`]: what a benchmark needs of a server

pub mod bench;
mod connection;
mod topology;
mod scripts;
mod setup;
mod operations;
mod commits;
mod partition;
mod listing;
mod pauses;
mod permits;
mod watching;
mod event_log;
mod replies;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use redis::{Cmd, Value};
use refile_core::TaskId;
use refile_core::count::Count;
use tokio::sync::Mutex;

use crate::model::Receipt;
use crate::{OpenOptions, Result, StoreError};
use connection::Link;
use scripts::Script;
use topology::{MOST_PARTITIONS, Topology};

/// The layout of the keys that this program writes and reads; `lua/prelude.lua` tells it.
const SCHEMA: &str = "4";

/// How long a change of the partitions may take that is under way elsewhere.
const GROWING: Duration = Duration::from_secs(10);

/// The engine on Redis or Valkey. All keys of a partition start with `<namespace>:{<partition>}:`.
#[derive(Debug)]
pub struct RedisStore {
    link: Link,
    namespace: String,
    topology: RwLock<Arc<Topology>>,
    /// Which partition the next call starts at that may take from any.
    turn: AtomicU32,
    permits: permits::Permits,
    /// When this process last looked for outcomes that others left, in milliseconds since `started`.
    looked_for_left: AtomicU64,
    started: Instant,
    /// The epoch and the beat that each partition had last; one that has others lost data.
    known: Mutex<Vec<(String, u64)>>,
}

/// Where a script's item is to be carried out.
enum Place<'a> {
    /// In this partition.
    At(u32),
    /// Where the task lies.
    Home(&'a TaskId),
}

impl RedisStore {
    /// Connects, holds that the server may be used, and makes the namespace where it is missing.
    pub async fn open(url: &str, options: OpenOptions) -> Result<Self> {
        let link = Link::new(url, options.observer)?;
        setup::require_usable(&link, options.allow_volatile).await?;
        let store = Self {
            link,
            namespace: options.namespace.unwrap_or_else(|| "refile".to_owned()),
            topology: RwLock::new(Arc::new(Topology::new())),
            turn: AtomicU32::new(std::process::id()),
            permits: permits::Permits::default(),
            looked_for_left: AtomicU64::new(0),
            started: Instant::now(),
            known: Mutex::new(Vec::new()),
        };
        store.beat(0).await?;
        store.reload_topology().await?;
        let mut known = Vec::new();
        for partition in 0..store.topology().partitions() {
            known.push(store.beat(partition).await?);
        }
        *store.known.lock().await = known;
        Ok(store)
    }

    fn topology(&self) -> Arc<Topology> {
        self.topology.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads how many partitions there are. Says whether that is news.
    async fn reload_topology(&self) -> Result<bool> {
        let mut command = Cmd::new();
        command.arg("HGET").arg(self.key(0, "meta")).arg("partitions");
        let kept: Option<String> = self.link.query("partitions", &command).await?;
        // After a flush there is nothing, and `check` makes it again.
        let Some(kept) = kept else { return Ok(false) };
        let read = Topology::parse(&kept).ok_or_else(|| StoreError::Unsuitable {
            store: self.link.name().to_owned(),
            why: format!("its number of partitions is `{kept}`, which this program does not know: update the program"),
        })?;
        let is_new = read != *self.topology();
        *self.topology.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
        Ok(is_new)
    }

    fn prefix(&self, partition: u32) -> String {
        format!("{}:{{{partition}}}:", self.namespace)
    }

    fn key(&self, partition: u32, name: &str) -> String {
        format!("{}:{{{partition}}}:{name}", self.namespace)
    }

    /// The list that whoever waits for this name blocks on. One for all partitions: in a cluster nobody can block on keys
    /// of several slots.
    fn wake_key(&self, name: &str) -> String {
        format!("{}:{{wake}}:{name}", self.namespace)
    }

    async fn run(&self, partition: u32, script: &Script, arguments: &[&[u8]]) -> Result<Value> {
        let (prefix, wake) = (self.prefix(partition), self.wake_key(""));
        // On one server scripts wake whoever waits; in a cluster they cannot, as that key may lie on another.
        let keys = [prefix.as_str(), wake.as_str()];
        let keys = if self.link.is_cluster() { &keys[..1] } else { &keys[..] };
        match self.link.run(script, keys, arguments).await {
            Err(StoreError::Engine { source, .. }) if source.to_string().contains("NOGROUP") => {
                // The queues are gone: the server was flushed or lost its file.
                self.beat(partition).await?;
                self.link.run(script, keys, arguments).await
            }
            result => result,
        }
    }

    async fn run_texts(&self, partition: u32, script: &Script, arguments: &[String]) -> Result<Value> {
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        self.run(partition, script, &arguments).await
    }

    /// Runs a script on every partition and gives the replies in their order.
    async fn run_everywhere(&self, script: &Script, arguments: &[&[u8]]) -> Result<Vec<Value>> {
        try_join_all((0..self.topology().partitions()).map(|p| self.run(p, script, arguments))).await
    }

    /// Makes a partition where it is missing, and counts a beat. Gives its epoch and its beat.
    async fn beat(&self, partition: u32) -> Result<(String, u64)> {
        let epoch = uuid::Uuid::now_v7().to_string();
        let partitions = self.topology().to_string();
        let arguments = [epoch.as_bytes(), partitions.as_bytes(), SCHEMA.as_bytes()];
        let reply = self.link.run(&scripts::CHECK, &[&self.prefix(partition)], &arguments).await?;
        let (epoch, beat, schema): (String, u64, String) = replies::read(scripts::CHECK.name, reply)?;
        if schema != SCHEMA {
            let why = format!(
                "the keys of `{}` have schema {schema}, and this program knows {SCHEMA}: use the program that made them, or \
                 another database",
                self.namespace
            );
            return Err(StoreError::Unsuitable { store: self.link.name().to_owned(), why });
        }
        Ok((epoch, beat))
    }

    /// Wakes after a script, where the script could not.
    async fn wake_in_cluster(&self, names: &[&str]) {
        if self.link.is_cluster() {
            self.wake(names).await;
        }
    }

    /// Wakes whoever waits for one of these names. One token each is enough: who claims and leaves something wakes the
    /// next. A token that gets lost costs a second: who waits looks again.
    async fn wake(&self, names: &[&str]) {
        for name in names {
            let key = self.wake_key(name);
            let mut pipe = redis::pipe();
            pipe.cmd("LPUSH").arg(&key).arg("1").ignore().cmd("LTRIM").arg(&key).arg(0).arg(0).ignore();
            if let Err(error) = self.link.query_pipe::<()>("wake", &pipe).await {
                tracing::debug!(%error, name, "could not wake whoever waits; they look again by themselves");
            }
        }
    }

    /// Carries items out, each where it belongs, all of a partition in one call. `run` answers nothing for an item whose
    /// task is not in its partition: then the next place that it may be in is asked. Answers stand in the items' order;
    /// nothing for those that are nowhere.
    async fn routed<'a, T, R, F, Fut>(
        &self,
        items: &'a [T],
        place: impl Fn(&'a T) -> Place<'a>,
        run: F,
    ) -> Result<Vec<Option<R>>>
    where
        F: Fn(u32, Vec<&'a T>) -> Fut,
        Fut: Future<Output = Result<Vec<Option<R>>>>,
    {
        let topology = self.topology();
        let places: Vec<Vec<u32>> = items
            .iter()
            .map(|item| match place(item) {
                Place::At(partition) => vec![partition],
                Place::Home(task) => topology.homes(task),
            })
            .collect();
        let mut answers: Vec<Option<R>> = items.iter().map(|_| None).collect();
        for round in 0..topology.generations() {
            let mut by_partition: Vec<(u32, Vec<usize>)> = Vec::new();
            for i in (0..items.len()).filter(|i| answers[*i].is_none()) {
                let Some(partition) = places[i].get(round) else { continue };
                match by_partition.iter_mut().find(|(p, _)| p == partition) {
                    Some((_, indexes)) => indexes.push(i),
                    None => by_partition.push((*partition, vec![i])),
                }
            }
            let calls = by_partition
                .iter()
                .map(|(partition, indexes)| run(*partition, indexes.iter().map(|i| &items[*i]).collect()));
            for ((_, indexes), found) in by_partition.iter().zip(try_join_all(calls).await?) {
                for (i, answer) in indexes.iter().zip(found) {
                    answers[*i] = answer;
                }
            }
        }
        Ok(answers)
    }

    /// The partitions, each call starting at another.
    fn partitions_in_turn(&self) -> impl Iterator<Item = u32> + use<> {
        let partitions = self.topology().partitions();
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        (0..partitions).map(move |n| first.wrapping_add(n) % partitions)
    }

    async fn set_aside(&self, partition: u32, broken: &[replies::Broken]) -> Result<()> {
        if broken.is_empty() {
            return Ok(());
        }
        let mut arguments: Vec<&[u8]> = Vec::new();
        for b in broken {
            tracing::error!(task = %b.task, phase = b.phase, what = b.kind, reason = b.reason, "cannot be decoded: quarantined");
            arguments.extend([
                b.kind.as_bytes(),
                b.id.as_bytes(),
                b.task.as_bytes(),
                b.phase.as_bytes(),
                b.reason.as_bytes(),
            ]);
        }
        self.run(partition, &scripts::QUARANTINE, &arguments).await.map(drop)
    }

    /// How long, in milliseconds, an outcome must have been left before this call takes it over; nothing for not to look
    /// this time.
    ///
    /// Looking costs a walk over everything that coordinators have in their hands, so it is done a few times per
    /// `takeover`, not at each call.
    fn idle_to_take_over(&self, takeover: Duration) -> Option<u64> {
        let takeover = takeover.as_millis() as u64;
        let now = self.started.elapsed().as_millis() as u64 + takeover;
        let last = self.looked_for_left.load(Ordering::Relaxed);
        if now.saturating_sub(last) < takeover / 4 {
            return None;
        }
        self.looked_for_left.store(now, Ordering::Relaxed);
        Some(takeover)
    }

    /// Adds partitions: all are told, the first of them last, since whoever learns of the new
    /// number learns it there. So nobody adds a task by the old number once somebody uses the new one.
    async fn grow(&self, partitions: u32) -> Result<()> {
        let before = self.topology();
        let unsuitable = |why: String| StoreError::Unsuitable { store: self.link.name().to_owned(), why };
        if partitions < before.partitions() {
            return Err(unsuitable(format!(
                "it has {} partitions, and their number can only grow: tasks lie in them",
                before.partitions()
            )));
        }
        if partitions > MOST_PARTITIONS {
            return Err(unsuitable(format!("{partitions} partitions are too many: there may be {MOST_PARTITIONS}")));
        }
        if partitions == before.partitions() {
            return Ok(());
        }
        let after = before.grown(partitions);
        let (old, new, generations) = (before.to_string(), after.to_string(), after.generations().to_string());
        let tell = async |partition: u32, step: &str| {
            let arguments = [step.as_bytes(), old.as_bytes(), new.as_bytes(), generations.as_bytes()];
            let reply = self.run(partition, &scripts::GROW, &arguments).await?;
            let other: String = replies::read(scripts::GROW.name, reply)?;
            if other.is_empty() {
                return Ok(());
            }
            let on_the_way = Topology::parse(&other).map_or(0, |t| t.partitions());
            Err(unsuitable(format!(
                "somebody else is giving it {on_the_way} partitions; if nobody is at it any more, run `refile partitions \
                 {on_the_way}` to the end, and then this again"
            )))
        };
        tell(0, "begin").await?;
        let mut pauses = Cmd::new();
        pauses.arg("HGETALL").arg(self.key(0, "pauses"));
        let pauses: Vec<(String, String)> = self.link.query("pauses", &pauses).await?;
        for partition in before.partitions()..partitions {
            self.beat(partition).await?;
            for (target, pause) in pauses.iter().filter(|(target, _)| target.starts_with("queue:")) {
                let mut command = Cmd::new();
                command.arg("HSET").arg(self.key(partition, "pauses")).arg(target).arg(pause);
                self.link.query::<()>("pauses", &command).await?;
            }
        }
        for partition in (0..partitions).rev() {
            tell(partition, "tell").await?;
        }
        self.reload_topology().await?;
        let mut known = self.known.lock().await;
        for partition in known.len() as u32..partitions {
            known.push(self.beat(partition).await?);
        }
        Ok(())
    }

    /// Learns of partitions that were added while a submission was under way.
    async fn wait_for_new_topology(&self) -> Result<()> {
        let deadline = Instant::now() + GROWING;
        while !self.reload_topology().await? {
            if Instant::now() > deadline {
                return Err(StoreError::Unsuitable {
                    store: self.link.name().to_owned(),
                    why: "partitions are being added and that was not finished; run `refile partitions N` again"
                        .to_owned(),
                });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// The partition and the entry of a receipt.
fn place_of(receipt: &Receipt) -> (u32, &str) {
    let (partition, entry) = receipt.id.split_once(':').unwrap_or(("0", &receipt.id));
    (partition.parse().unwrap_or(0), entry)
}

/// An owner as a stored job holds it: without spaces.
fn owner(name: &str) -> String {
    name.replace(char::is_whitespace, "_")
}

fn slices(arguments: &[Vec<u8>]) -> Vec<&[u8]> {
    arguments.iter().map(Vec::as_slice).collect()
}

/// Whether a stored number is of a metric that this program knows; older and newer programs may share a store.
fn is_known_count(key: &str) -> bool {
    Count::parse(key).is_some()
}
