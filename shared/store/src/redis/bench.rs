//! What a benchmark needs of a Redis server beside the store: its own numbers, an empty namespace, and the same two
//! stages on bare streams, as the limit that the store is compared with.
//!
//! Nothing here is used by a fleet.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline};

use crate::error::without_password;
use crate::{Result, StoreError};

/// The name that the benchmark's connection has on the server.
const NAME: &str = "refile-bench";
/// Keys that are looked through, and entries that go to the server, in one round trip.
const BATCH: usize = 100;
/// The bytes of a key with more members are estimated.
const LARGE: u64 = 20_000;
/// How long a stage waits for an entry before it looks whether it is to stop, in milliseconds.
const WAIT_MS: u64 = 100;
/// What only clients send, and no script runs. Scripts read fields of hashes, too: reads of records are not among these.
const FROM_CLIENTS: [&str; 21] = [
    "xreadgroup",
    "xautoclaim",
    "zmscore",
    "ltrim",
    "evalsha",
    "eval",
    "evalsha_ro",
    "eval_ro",
    "fcall",
    "fcall_ro",
    "script",
    "blpop",
    "brpop",
    "bzpopmin",
    "hello",
    "auth",
    "select",
    "ping",
    "client",
    "info",
    "config",
];

/// A connection to the server.
#[derive(Debug)]
struct Connection {
    redis: MultiplexedConnection,
    name: String,
}

impl Connection {
    async fn open(url: &str) -> Result<Self> {
        let name = without_password(url);
        let client = redis::Client::open(url).map_err(|_| StoreError::Url { url: name.clone() })?;
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(Duration::from_secs(5)));
        // Stages wait on the server, and a rewrite of a large file may hold it up.
        let config = config.set_response_timeout(None);
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        let unavailable =
            |e| StoreError::Unavailable { store: name.clone(), operation: "connect", source: Box::new(e) };
        Ok(Self { redis: connected.map_err(unavailable)?, name })
    }

    async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T> {
        command.query_async(&mut self.redis).await.map_err(|e| self.failed(e))
    }

    async fn pipe<T: FromRedisValue>(&mut self, pipe: &Pipeline) -> Result<T> {
        pipe.query_async(&mut self.redis).await.map_err(|e| self.failed(e))
    }

    fn failed(&self, error: redis::RedisError) -> StoreError {
        StoreError::Unavailable { store: self.name.clone(), operation: "bench", source: Box::new(error) }
    }
}

/// The server's own numbers at one moment. All but `memory` only grow.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Its version.
    pub version: String,
    /// Processor time that it has used, in seconds.
    pub cpu_s: f64,
    /// Bytes of memory in use.
    pub memory: u64,
    /// Bytes of its append-only file, and how many of them its last rewrite left; nothing where it keeps none.
    pub aof: Option<(u64, u64)>,
    /// Commands that clients sent, as far as they can be told apart from those inside scripts: the calls of commands
    /// that no script runs (scripts by their digests, waits for a token, a connection's first words).
    pub sent: u64,
    /// Commands that were carried out, those inside scripts included.
    pub processed: u64,
}

/// A key and how large it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySize {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Fields, members or entries.
    pub members: u64,
    /// Bytes; of a key with very many members an estimate.
    pub bytes: u64,
    /// Of a stream: its groups.
    pub groups: u64,
    /// Of a stream: the consumers of its groups.
    pub consumers: u64,
    /// Of a stream: entries that consumers have and did not acknowledge.
    pub pending: u64,
}

/// A server on which a benchmark runs.
#[derive(Debug)]
pub struct Server(Connection);

impl Server {
    /// Connects. `None` where another benchmark runs there: they would measure each other.
    pub async fn open(url: &str) -> Result<Option<Self>> {
        let mut connection = Connection::open(url).await?;
        let () = connection.query(redis::cmd("CLIENT").arg("SETNAME").arg(NAME)).await?;
        let clients: String = connection.query(redis::cmd("CLIENT").arg("LIST")).await?;
        let is_ours = |line: &&str| line.split(' ').any(|field| field.strip_prefix("name=") == Some(NAME));
        Ok((clients.lines().filter(is_ours).count() == 1).then_some(Self(connection)))
    }

    /// Connects to look on, also while a benchmark runs.
    pub async fn watch(url: &str) -> Result<Self> {
        Ok(Self(Connection::open(url).await?))
    }

    /// Reads the server's numbers.
    pub async fn sample(&mut self) -> Result<Sample> {
        let mut command = Cmd::new();
        command.arg("INFO").arg(&["server", "cpu", "memory", "persistence", "stats", "commandstats"]);
        Ok(read_info(&self.0.query::<String>(&command).await?))
    }

    /// Some keys of a namespace, and where the look goes on: at 0 it is over.
    async fn scan(&mut self, cursor: u64, namespace: &str) -> Result<(u64, Vec<String>)> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{namespace}:*")).arg("COUNT").arg(10 * BATCH);
        self.0.query(&scan).await
    }

    /// What lies under a namespace: each key with its type, how many members it has, and its bytes. Looks through every
    /// key of the server: for a benchmark's own.
    pub async fn keys(&mut self, namespace: &str) -> Result<Vec<KeySize>> {
        let mut names: Vec<String> = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let (next, keys) = self.scan(cursor, namespace).await?;
            names.extend(keys);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        names.sort_unstable();
        // A scan may give a key twice.
        names.dedup();
        let mut sizes = Vec::with_capacity(names.len());
        for name in names {
            let kind: String = self.0.query(redis::cmd("TYPE").arg(&name)).await?;
            let length = match kind.as_str() {
                "hash" => Some("HLEN"),
                "zset" => Some("ZCARD"),
                "set" => Some("SCARD"),
                "stream" => Some("XLEN"),
                "list" => Some("LLEN"),
                _ => None,
            };
            let members: u64 = match length {
                Some(command) => self.0.query(redis::cmd(command).arg(&name)).await?,
                None => 1,
            };
            // Of a large key some members stand for all: looking at each would hold the server up.
            let samples = if members > LARGE { 5 } else { 0 };
            let mut usage = redis::cmd("MEMORY");
            usage.arg("USAGE").arg(&name).arg("SAMPLES").arg(samples);
            let bytes: Option<u64> = self.0.query(&usage).await?;
            let (groups, consumers, pending) = if kind == "stream" { self.groups(&name).await? } else { (0, 0, 0) };
            let bytes = bytes.unwrap_or(0);
            sizes.push(KeySize { name, kind, members, bytes, groups, consumers, pending });
        }
        Ok(sizes)
    }

    /// A stream's groups, their consumers, and the entries that those have.
    async fn groups(&mut self, stream: &str) -> Result<(u64, u64, u64)> {
        let told: Vec<std::collections::HashMap<String, redis::Value>> =
            self.0.query(redis::cmd("XINFO").arg("GROUPS").arg(stream)).await?;
        let sum = |field: &str| {
            let of = |group: &std::collections::HashMap<String, redis::Value>| match group.get(field) {
                Some(redis::Value::Int(n)) => *n as u64,
                _ => 0,
            };
            told.iter().map(of).sum()
        };
        Ok((told.len() as u64, sum("consumers"), sum("pending")))
    }

    /// How many scripts the server keeps.
    pub async fn scripts(&mut self) -> Result<u64> {
        let info: String = self.0.query(redis::cmd("INFO").arg("memory")).await?;
        Ok(number(field(&info, "number_of_cached_scripts")))
    }

    /// Removes every key of a namespace, and waits until the memory is free again.
    pub async fn clear(&mut self, namespace: &str) -> Result<()> {
        let mut cursor = 0_u64;
        loop {
            let (next, keys) = self.scan(cursor, namespace).await?;
            if !keys.is_empty() {
                let _: u64 = self.0.query(redis::cmd("UNLINK").arg(keys)).await?;
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        // The server frees large values beside its work.
        loop {
            let info: String = self.0.query(redis::cmd("INFO").arg("memory")).await?;
            if number(field(&info, "lazyfree_pending_objects")) == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn read_info(info: &str) -> Sample {
    let seconds = |name| field(info, name).parse::<f64>().unwrap_or(0.0);
    let aof = number(field(info, "aof_enabled")) == 1;
    let calls = |line: &str| {
        let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        // A subcommand is written `client|setinfo`.
        let is_sent = FROM_CLIENTS.contains(&name.split('|').next()?);
        is_sent.then(|| counts.split(',').find_map(|c| c.strip_prefix("calls=")).map_or(0, number))
    };
    Sample {
        version: field(info, "redis_version").to_owned(),
        cpu_s: seconds("used_cpu_sys") + seconds("used_cpu_user"),
        memory: number(field(info, "used_memory")),
        aof: aof.then(|| (number(field(info, "aof_current_size")), number(field(info, "aof_base_size")))),
        sent: info.lines().filter_map(calls).sum(),
        processed: number(field(info, "total_commands_processed")),
    }
}

/// The value of a line `name:value`.
fn field<'a>(info: &'a str, name: &str) -> &'a str {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default().trim()
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// What `XREADGROUP` gives: streams, their entries, and the fields of each.
type Read = Option<Vec<(String, Vec<(String, Vec<String>)>)>>;

/// Two queues on bare streams: a record and an entry for each task, which one stage passes on to the next. No leases, no
/// fences, no decisions: less cannot be done.
#[derive(Debug)]
pub struct BareStreams {
    connection: Connection,
    prefix: String,
}

impl BareStreams {
    /// Connects, and makes the streams where they are missing.
    pub async fn open(url: &str, namespace: &str) -> Result<Self> {
        let mut bare = Self { connection: Connection::open(url).await?, prefix: format!("{namespace}:{{0}}:limit:") };
        for queue in ["q1", "q2"] {
            let mut create = redis::cmd("XGROUP");
            create.arg("CREATE").arg(bare.key(queue)).arg("w").arg("0").arg("MKSTREAM");
            match create.query_async::<()>(&mut bare.connection.redis).await {
                Err(error) if error.code() != Some("BUSYGROUP") => return Err(bare.connection.failed(error)),
                _ => {}
            }
        }
        Ok(bare)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Adds the tasks of these numbers, each with a record and an entry of the first queue.
    pub async fn add(&mut self, tasks: std::ops::Range<u64>, record: &[u8]) -> Result<()> {
        let (queue, mut from) = (self.key("q1"), tasks.start);
        while from < tasks.end {
            let to = tasks.end.min(from + BATCH as u64);
            let mut pipe = redis::pipe();
            for task in from..to {
                pipe.cmd("HSET").arg(self.key(&format!("rec:{task}"))).arg("r").arg(record).ignore();
                pipe.cmd("XADD").arg(&queue).arg("*").arg("t").arg(task).ignore();
            }
            let () = self.connection.pipe(&pipe).await?;
            from = to;
        }
        Ok(())
    }

    /// The first stage: passes what waits in the first queue on to the second, and writes each record again. Gives how many.
    pub async fn pass_on(&mut self, record: &[u8]) -> Result<usize> {
        let (from, to) = (self.key("q1"), self.key("q2"));
        let entries = self.read(&from).await?;
        let mut pipe = redis::pipe();
        for (id, fields) in &entries {
            let task = fields.last().map_or("", String::as_str);
            pipe.cmd("HSET").arg(self.key(&format!("rec:{task}"))).arg("r").arg(record).ignore();
            pipe.cmd("XADD").arg(&to).arg("*").arg(fields).ignore();
            pipe.cmd("XACK").arg(&from).arg("w").arg(id).ignore();
        }
        self.send(&entries, &pipe).await
    }

    /// The second stage: acknowledges what waits in the second queue. Gives how many.
    pub async fn finish(&mut self) -> Result<usize> {
        let from = self.key("q2");
        let entries = self.read(&from).await?;
        let mut pipe = redis::pipe();
        for (id, _) in &entries {
            pipe.cmd("XACK").arg(&from).arg("w").arg(id).ignore();
        }
        self.send(&entries, &pipe).await
    }

    async fn read(&mut self, queue: &str) -> Result<Vec<(String, Vec<String>)>> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("w").arg("c").arg("COUNT").arg(BATCH).arg("BLOCK").arg(WAIT_MS);
        read.arg("STREAMS").arg(queue).arg(">");
        let read: Read = self.connection.query(&read).await?;
        Ok(read.unwrap_or_default().into_iter().flat_map(|(_, entries)| entries).collect())
    }

    async fn send(&mut self, entries: &[(String, Vec<String>)], pipe: &Pipeline) -> Result<usize> {
        if !entries.is_empty() {
            let () = self.connection.pipe(pipe).await?;
        }
        Ok(entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_sent_is_told_from_what_scripts_ran() {
        let info = "# Server\r\nredis_version:7.0.15\r\nused_memory:1000\r\nused_cpu_sys:0.5\r\nused_cpu_user:1.25\r\n\
            aof_enabled:1\r\naof_current_size:70\r\naof_base_size:60\r\ntotal_commands_processed:99\r\n\
            cmdstat_evalsha:calls=5,usec=1\r\ncmdstat_hset:calls=40,usec=1\r\ncmdstat_client|setinfo:calls=2,usec=1\r\n";
        let sample = read_info(info);
        assert_eq!((sample.sent, sample.processed, sample.memory), (7, 99, 1_000));
        assert_eq!((sample.version.as_str(), sample.aof), ("7.0.15", Some((70, 60))));
        assert!((sample.cpu_s - 1.75).abs() < 1e-9);
    }
}
