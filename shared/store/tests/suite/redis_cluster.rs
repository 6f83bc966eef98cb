//! The harness of the Redis engine on a cluster: three real masters on loopback, each with an append-only file, which
//! share the slots. Tests share a cluster; each has a namespace of its own.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::cluster::{ClusterClient, ClusterConnection};
use refile_core::TaskId;
use refile_store::{OpenOptions, RedisStore, Store};

use crate::redis_server::{Server, corrupt_outcome, swap_record};
use crate::suite::kit::Harness;

/// The slots of the three masters: first and last.
const SLOTS: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];

/// A running cluster. Its servers are stopped when this is dropped.
pub(crate) struct Cluster {
    nodes: Mutex<Vec<Node>>,
}

struct Node {
    server: Server,
    bus: u16,
    folder: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            // Held at once, so that they are two.
            let ports = [0, 0].map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap());
            let [port, bus] = ports.map(|listener| listener.local_addr().unwrap().port());
            if let Some(server) = start_on(port, bus, &folder) {
                return Self { server, bus, folder };
            }
        }
        panic!("no node could be started on any of 20 ports");
    }

    fn ask(&self, command: &[&str]) -> String {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg(command).query(&mut self.server.try_connect().unwrap()).unwrap()
    }

    /// Whether this node knows all the others and holds the cluster for sound.
    fn is_ready(&self) -> bool {
        let info = self.ask(&["INFO"]);
        ["cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3"].iter().all(|word| info.contains(word))
    }
}

fn start_on(port: u16, bus: u16, folder: &tempfile::TempDir) -> Option<Server> {
    let bus = bus.to_string();
    let besides = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-announce-ip", "127.0.0.1"];
    Server::start_on(port, folder.path(), &besides)
}

impl Cluster {
    pub(crate) fn start() -> Arc<Self> {
        let nodes = [(); 3].map(|()| Node::start());
        for (n, (node, (first, last))) in nodes.iter().zip(SLOTS).enumerate() {
            node.ask(&["ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            node.ask(&["SET-CONFIG-EPOCH", &(n + 1).to_string()]);
        }
        for other in &nodes[1..] {
            let (port, bus) = (other.server.port.to_string(), other.bus.to_string());
            nodes[0].ask(&["MEET", "127.0.0.1", &port, &bus]);
        }
        let cluster = Self { nodes: Mutex::new(nodes.into()) };
        cluster.wait();
        Arc::new(cluster)
    }

    /// Waits until every node says that the cluster is sound. A master that starts waits two seconds by itself.
    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_mins(1);
        for node in self.nodes.lock().unwrap().iter() {
            while !node.is_ready() {
                assert!(Instant::now() < deadline, "the cluster never got sound: {}", node.ask(&["INFO"]));
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        let nodes = self.nodes.lock().unwrap();
        let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.server.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// A connection that finds the node of each key by itself.
    pub(crate) fn connect(&self) -> ClusterConnection {
        let nodes = self.nodes.lock().unwrap();
        let urls: Vec<_> = nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.server.port)).collect();
        ClusterClient::new(urls).unwrap().get_connection().unwrap()
    }

    /// How many keys that start so each node has.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<usize> {
        let count = |node: &Node| {
            let mut keys = redis::cmd("KEYS");
            keys.arg(format!("{prefix}*")).query::<Vec<String>>(&mut node.server.try_connect().unwrap()).unwrap().len()
        };
        self.nodes.lock().unwrap().iter().map(count).collect()
    }

    /// Stops every node and starts it again on its ports.
    pub(crate) fn restart(&self) {
        let mut nodes = self.nodes.lock().unwrap();
        for node in nodes.iter_mut() {
            node.server.stop();
        }
        for node in nodes.iter_mut() {
            node.server = start_on(node.server.port, node.bus, &node.folder).expect("a node starts again on its ports");
        }
        drop(nodes);
        self.wait();
    }
}

/// A namespace in a cluster.
pub(crate) struct ClusterHarness {
    cluster: Arc<Cluster>,
    namespace: String,
    partitions: u32,
}

impl ClusterHarness {
    pub(crate) async fn new(cluster: &Arc<Cluster>, namespace: &str, partitions: u32) -> Self {
        let harness = Self { cluster: cluster.clone(), namespace: namespace.to_owned(), partitions };
        assert_eq!(harness.store().await.partitions(Some(partitions)).await.unwrap(), partitions);
        harness
    }

    /// What the keys of a task start with: where the published FNV-1a of 64 bits puts it.
    fn prefix(&self, task: &TaskId) -> String {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = task.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, step);
        format!("{}:{{{}}}", self.namespace, hash % u64::from(self.partitions))
    }
}

#[async_trait]
impl Harness for ClusterHarness {
    async fn store(&self) -> Arc<dyn Store> {
        let options = OpenOptions { namespace: Some(self.namespace.clone()), ..OpenOptions::default() };
        Arc::new(RedisStore::open(&self.cluster.url(), options).await.unwrap())
    }

    async fn swap_record(&self, task: &TaskId, bytes: &[u8]) -> Vec<u8> {
        swap_record(&mut self.cluster.connect(), &self.prefix(task), task, bytes)
    }

    async fn corrupt_outcome(&self, task: &TaskId) {
        corrupt_outcome(&mut self.cluster.connect(), &self.prefix(task), task);
    }

    fn partitions(&self) -> u32 {
        self.partitions
    }

    async fn restart(&self) {
        self.cluster.restart();
    }
}
