//! What an agent may do through us, and what is kept of what it says and does: a bounded part of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol::v1::schema::{
    ContentBlock, PermissionOptionKind, ReadTextFileRequest, RequestPermissionOutcome, RequestPermissionRequest,
    SelectedPermissionOutcome, SessionUpdate, ToolKind, WriteTextFileRequest,
};
use refile_config::{Agent, Tool};

use crate::agent::confined::Confined;
use crate::agent::transcript::Transcript;
use crate::process::{Secrets, Veil};

/// How much of one message in pieces is kept, in bytes.
const LONGEST_SPEECH: usize = 1 << 20;
/// How many calls of tools are known by their kind. Those beyond it are judged as ones of an unknown kind.
const MOST_CALLS: usize = 10_000;
/// The longest name of such a call, in bytes.
const LONGEST_NAME: usize = 1 << 10;

/// What is known of a session while it goes on.
pub(super) struct Session {
    files: Arc<Confined>,
    agent: Agent,
    seen: Mutex<Seen>,
}

/// What the agent said and did so far.
pub(super) struct Seen {
    pub(super) transcript: Transcript,
    /// The message that is being said.
    speech: Speech,
    /// The whole message that was said last.
    pub(super) last: String,
    kinds: HashMap<String, ToolKind>,
    pub(super) cost_micros: u64,
}

/// A message in pieces, without secrets.
struct Speech {
    veil: Veil,
    text: String,
}

impl Speech {
    fn push(&mut self, piece: &str) {
        let shown = self.veil.pass(piece.as_bytes());
        self.add(&shown);
    }

    fn add(&mut self, shown: &[u8]) {
        let shown = String::from_utf8_lossy(shown);
        let room = LONGEST_SPEECH.saturating_sub(self.text.len());
        self.text.push_str(&shown[..shown.floor_char_boundary(room)]);
    }

    fn end(&mut self) -> String {
        let last = self.veil.end();
        self.add(&last);
        std::mem::take(&mut self.text)
    }
}

impl Session {
    pub(super) fn new(files: Confined, agent: Agent, secrets: &Secrets) -> Self {
        let seen = Seen {
            transcript: Transcript::new(secrets.clone()),
            speech: Speech { veil: secrets.veil(), text: String::new() },
            last: String::new(),
            kinds: HashMap::new(),
            cost_micros: 0,
        };
        Self { files: Arc::new(files), agent, seen: Mutex::new(seen) }
    }

    /// The transcript and the message that is being said, where that is not as long as it was.
    pub(super) fn so_far(&self, known: usize) -> Option<(usize, String)> {
        let seen = self.seen();
        let words = &seen.speech.text;
        let length = seen.transcript.length() + words.len();
        (length != known).then(|| (length, seen.transcript.with(words)))
    }

    /// What was seen so far. A thread that panicked while it held the lock left whole values behind.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to an agent that asks for leave: one of its own options, chosen by kind.
    pub(super) fn permit(&self, request: &RequestPermissionRequest) -> RequestPermissionOutcome {
        let call = &request.tool_call;
        let mut seen = self.seen();
        let kind = call.fields.kind.or_else(|| seen.kinds.get(&call.tool_call_id.to_string()).copied());
        let kind = kind.unwrap_or_default();
        let places = call.fields.locations.iter().flatten();
        let is_allowed = may(&self.agent, kind) && places.into_iter().all(|place| self.files.is_inside(&place.path));
        let wanted = if is_allowed {
            [PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways]
        } else {
            [PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways]
        };
        let title = call.fields.title.as_deref().unwrap_or_default();
        let answer = if is_allowed { "allowed" } else { "refused" };
        seen.said();
        seen.transcript.part("?", &format!("{kind:?} {title}: {answer}"));
        let option = wanted.iter().find_map(|wanted| request.options.iter().find(|option| option.kind == *wanted));
        option.map_or(RequestPermissionOutcome::Cancelled, |option| {
            RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.option_id.clone()))
        })
    }

    pub(super) async fn read(&self, request: ReadTextFileRequest) -> Result<String, String> {
        let path = request.path.display().to_string();
        let said = if self.agent.may(Tool::Read) {
            let (files, path) = (self.files.clone(), path.clone());
            apart(move || files.read(&path).map_err(|error| error.to_string())).await
        } else {
            Err("reading files is not among its allowed_tools".to_owned())
        };
        self.note("read", &path, said.as_ref().map(drop));
        let text = said?;
        let first = request.line.unwrap_or(1).max(1) as usize - 1;
        if first == 0 && request.limit.is_none() {
            return Ok(text);
        }
        let lines = text.split_inclusive('\n').skip(first);
        Ok(lines.take(request.limit.map_or(usize::MAX, |limit| limit as usize)).collect())
    }

    pub(super) async fn write(&self, request: WriteTextFileRequest) -> Result<(), String> {
        let path = request.path.display().to_string();
        let said = if self.agent.may(Tool::Write) || self.agent.may(Tool::Edit) {
            let (files, path) = (self.files.clone(), path.clone());
            apart(move || files.write(&path, &request.content).map_err(|error| error.to_string())).await
        } else {
            Err("writing files is not among its allowed_tools".to_owned())
        };
        self.note("write", &path, said.as_ref().map(drop));
        said
    }

    fn note(&self, what: &str, path: &str, said: Result<(), &String>) {
        let mut seen = self.seen();
        seen.said();
        match said {
            Ok(()) => seen.transcript.part(">", &format!("{what} {path}")),
            Err(why) => seen.transcript.part("!", &format!("{what} {path}: {why}")),
        }
    }
}

impl Seen {
    pub(super) fn update(&mut self, update: SessionUpdate) {
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                if let ContentBlock::Text(text) = chunk.content {
                    self.speech.push(&text.text);
                }
            }
            SessionUpdate::ToolCall(call) => {
                self.said();
                self.remember(call.tool_call_id.to_string(), call.kind);
                let input = call.raw_input.map(|input| format!(" {input}")).unwrap_or_default();
                self.transcript.part(">", &format!("{:?} {}{input}", call.kind, call.title));
            }
            SessionUpdate::ToolCallUpdate(update) => {
                self.said();
                if let Some(kind) = update.fields.kind {
                    self.remember(update.tool_call_id.to_string(), kind);
                }
                if let Some(status) = update.fields.status {
                    let output = update.fields.raw_output.map(|output| format!(" {output}")).unwrap_or_default();
                    self.transcript.part("<", &format!("{:?} {}{output}", status, update.tool_call_id));
                }
            }
            SessionUpdate::UsageUpdate(usage) => {
                // The sum of the session so far.
                if let Some(cost) = usage.cost.filter(|cost| cost.currency.eq_ignore_ascii_case("usd")) {
                    self.cost_micros = (cost.amount.max(0.0) * 1e6) as u64;
                }
            }
            _ => {}
        }
    }

    /// Remembers what kind of call one is, for when leave is asked for it.
    fn remember(&mut self, name: String, kind: ToolKind) {
        if name.len() <= LONGEST_NAME && (self.kinds.len() < MOST_CALLS || self.kinds.contains_key(&name)) {
            self.kinds.insert(name, kind);
        }
    }

    /// A message is whole once something else follows it.
    pub(super) fn said(&mut self) {
        let words = self.speech.end();
        if !words.trim().is_empty() {
            self.transcript.words(&words);
            self.last = words;
        }
    }
}

/// Whether an agent may do something of this kind.
fn may(agent: &Agent, kind: ToolKind) -> bool {
    let any = |tools: &[Tool]| tools.iter().any(|tool| agent.may(*tool));
    match kind {
        ToolKind::Read => any(&[Tool::Read]),
        ToolKind::Edit | ToolKind::Delete | ToolKind::Move => any(&[Tool::Write, Tool::Edit]),
        ToolKind::Search => any(&[Tool::Glob, Tool::Grep]),
        ToolKind::Execute => any(&[Tool::Bash]),
        ToolKind::Think => true,
        // What fetches, switches modes or says nothing of itself may be anything.
        _ => Tool::ALL.iter().all(|tool| agent.may(*tool)),
    }
}

/// Does what waits for a disk off the thread that everything else runs on.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}
