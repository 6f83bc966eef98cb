//! Connecting to the server, and connecting again.
//!
//! The library's multiplexed connection does not come back by itself after a time-out or when a server has become a
//! replica, and a blocking command would stall it. So reconnecting is done here, and each wait has a connection of its own.

use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo};
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline, RedisError, RedisFuture, ScriptInvocation, Value};
use tokio::sync::Mutex;

use super::scripts::Script;
use crate::error::without_password;
use crate::{Observer, Result, StoreError};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a command may take; a script over a large batch on a busy server takes a while.
const RESPONSE: Duration = Duration::from_secs(10);
/// Longer than anybody waits for a token.
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// How many tries an operation gets before its caller hears of it.
const TRIES: u32 = 2;

/// What is sent to the server.
enum Request<'a> {
    Script(ScriptInvocation<'a>),
    Command(&'a Cmd),
    /// To every node that takes writes.
    Nodes(&'a Cmd),
    Pipe(&'a Pipeline),
}

/// One server, or a cluster of them.
enum Server {
    Single(Box<redis::Client>),
    /// The nodes that were named; the others are found through them.
    Cluster(Vec<String>),
}

/// A connection to either.
#[derive(Clone)]
enum Wire {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Single(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}

/// The way to the server or the cluster.
pub(super) struct Link {
    server: Server,
    name: String,
    observer: Option<Observer>,
    /// The connection for commands, with a number that grows with each new one.
    commands: Mutex<(u64, Option<Wire>)>,
    /// Connections on which nobody waits at the moment.
    waiting: Mutex<Vec<Wire>>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(url: &str, observer: Option<Observer>) -> Result<Self> {
        let name = without_password(url);
        let odd = |_| StoreError::Url { url: name.clone() };
        let server = match url.strip_prefix("redis+cluster://") {
            None => Server::Single(Box::new(redis::Client::open(url).map_err(odd)?)),
            Some(nodes) => {
                let (login, nodes) = nodes.rsplit_once('@').map_or(("", nodes), |(login, nodes)| (login, nodes));
                let at = if login.is_empty() { String::new() } else { format!("{login}@") };
                let nodes: Vec<String> = nodes.split(',').map(|node| format!("redis://{at}{node}")).collect();
                ClusterClient::new(nodes.clone()).map_err(odd)?;
                Server::Cluster(nodes)
            }
        };
        Ok(Self { server, name, observer, commands: Mutex::new((0, None)), waiting: Mutex::new(Vec::new()) })
    }

    /// Whether keys of different partitions may lie on different servers.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.server, Server::Cluster(_))
    }

    /// Where the server is, without its password.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs a script on a partition.
    pub(super) async fn run(&self, script: &Script, keys: &[&str], arguments: &[&[u8]]) -> Result<Value> {
        let mut invocation = script.script.prepare_invoke();
        for key in keys {
            invocation.key(*key);
        }
        for argument in arguments {
            invocation.arg(*argument);
        }
        self.send(script.name, Request::Script(invocation)).await
    }

    /// Runs a command.
    pub(super) async fn query<T: FromRedisValue>(&self, operation: &'static str, command: &Cmd) -> Result<T> {
        super::replies::read(operation, self.send(operation, Request::Command(command)).await?)
    }

    /// Runs a command on each node that takes writes: the only server, or every master of a cluster.
    pub(super) async fn query_nodes<T: FromRedisValue>(
        &self,
        operation: &'static str,
        command: &Cmd,
    ) -> Result<Vec<T>> {
        let replies = match (&self.server, self.send(operation, Request::Nodes(command)).await?) {
            (Server::Cluster(_), Value::Map(by_node)) => by_node.into_iter().map(|(_, reply)| reply).collect(),
            (_, reply) => vec![reply],
        };
        replies.into_iter().map(|reply| super::replies::read(operation, reply)).collect()
    }

    /// Runs several commands in one round trip.
    pub(super) async fn query_pipe<T: FromRedisValue>(&self, operation: &'static str, pipe: &Pipeline) -> Result<T> {
        super::replies::read(operation, self.send(operation, Request::Pipe(pipe)).await?)
    }

    /// Waits until a token lies in one of the lists, and takes it. `false` when the time is over first.
    pub(super) async fn wait_for(&self, lists: &[String], deadline: Instant) -> Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        // Taken out while somebody waits on it: dropping this future drops the connection, which ends the server's wait.
        let idle = self.waiting.lock().await.pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect(None).await?,
        };
        let mut command = Cmd::new();
        command.arg("BLPOP").arg(lists).arg(left.as_secs_f64().max(0.001));
        // The server ends the wait by itself; one that says nothing for longer is away.
        let answered = tokio::time::timeout(left + RESPONSE, command.query_async(&mut connection)).await;
        let token: Option<(String, String)> = match answered {
            Ok(reply) => reply.map_err(|error| self.error("wait", error))?,
            Err(elapsed) => return Err(self.unavailable("wait", elapsed)),
        };
        self.waiting.lock().await.push(connection);
        Ok(token.is_some())
    }

    /// Sends a request, on a new connection where the one at hand turns out to be dead.
    async fn send(&self, operation: &'static str, request: Request<'_>) -> Result<Value> {
        let started = Instant::now();
        let mut tried = 0;
        let result = loop {
            tried += 1;
            let (number, mut connection) = self.connection().await?;
            let reply = match &request {
                Request::Script(invocation) => invocation.invoke_async(&mut connection).await,
                Request::Command(command) => command.query_async(&mut connection).await,
                Request::Nodes(command) => match &mut connection {
                    Wire::Single(connection) => command.query_async(connection).await,
                    Wire::Cluster(connection) => connection.route_command((*command).clone(), all_masters()).await,
                },
                Request::Pipe(pipe) => pipe.query_async(&mut connection).await,
            };
            match reply {
                Ok(value) => break Ok(value),
                Err(error) if is_away(&error) => {
                    self.give_up(number).await;
                    if tried == TRIES {
                        break Err(self.unavailable(operation, error));
                    }
                }
                Err(error) => break Err(self.error(operation, error)),
            }
        };
        if let Some(observer) = &self.observer {
            observer(operation, started.elapsed());
        }
        result
    }

    /// The connection for commands; a new one where there is none.
    async fn connection(&self) -> Result<(u64, Wire)> {
        let mut commands = self.commands.lock().await;
        if let (number, Some(connection)) = &*commands {
            return Ok((*number, connection.clone()));
        }
        let connection = self.connect(Some(RESPONSE)).await?;
        *commands = (commands.0 + 1, Some(connection.clone()));
        Ok((commands.0, connection))
    }

    /// Forgets a connection that is dead, unless somebody has made a new one since.
    async fn give_up(&self, number: u64) {
        let mut commands = self.commands.lock().await;
        if commands.0 == number {
            commands.1 = None;
        }
    }

    async fn connect(&self, response: Option<Duration>) -> Result<Wire> {
        let connected = match &self.server {
            Server::Single(client) => {
                let config =
                    AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(response);
                client.get_multiplexed_async_connection_with_config(&config).await.map(Wire::Single)
            }
            Server::Cluster(nodes) => {
                // By itself the library would try for so long that nobody would hear of a node that is away.
                let builder = ClusterClient::builder(nodes.clone()).connection_timeout(CONNECT);
                let builder = builder.retries(3).min_retry_wait(20).max_retry_wait(300);
                // A wait ends by itself; here it would be cut at the library's half a second.
                let client = builder.response_timeout(response.unwrap_or(LONGEST_WAIT)).build();
                match client {
                    Ok(client) => client.get_async_connection().await.map(Wire::Cluster),
                    Err(error) => Err(error),
                }
            }
        };
        connected.map_err(|error| self.unavailable("connect", error))
    }

    fn unavailable(
        &self,
        operation: &'static str,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> StoreError {
        StoreError::Unavailable { store: self.name.clone(), operation, source: Box::new(source) }
    }

    fn error(&self, operation: &'static str, error: RedisError) -> StoreError {
        if is_away(&error) {
            self.unavailable(operation, error)
        } else {
            StoreError::Engine { operation, source: Box::new(error) }
        }
    }
}

/// Each master, and its own reply.
fn all_masters() -> RoutingInfo {
    RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, Some(ResponsePolicy::Special)))
}

/// Whether an error says that the server is away, starting, or no longer the one that takes writes. A server that is out
/// of memory is counted here too: it may have some again, and what it refused was not applied.
fn is_away(error: &RedisError) -> bool {
    let code = error.code().unwrap_or_default();
    error.is_io_error()
        || error.is_connection_dropped()
        || error.is_connection_refusal()
        || error.is_timeout()
        // The library has lost all nodes of a cluster, does not know them yet, or has them mixed up after a restart; a new
        // connection learns who has what.
        || error.kind() == redis::ErrorKind::ClusterConnectionNotFound
        || matches!(code, "MOVED" | "ASK")
        || matches!(code, "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "OOM" | "NOREPLICAS")
        // A script that is refused names the cause in its text.
        || ["READONLY", "OOM command not allowed", "MISCONF"].iter().any(|word| error.to_string().contains(word))
}
