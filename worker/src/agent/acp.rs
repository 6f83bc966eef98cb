//! A program that speaks the Agent Client Protocol: we are its client.
//!
//! It works in the attempt's tree. Leave that it asks for is given by `allowed_tools`, by the kind of what it wants to do;
//! files that it reads and writes through us are those of the tree; there is no terminal of ours. What it does by itself is
//! bounded as with every other command, no further.
//!
//! Where its time is up it is asked to stop (`session/cancel`), and its process group is killed soon after. Where the lease is
//! lost the group is killed at once: nobody waits for what it would still say.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    self, CancelNotification, ClientCapabilities, ContentBlock, FileSystemCapabilities, InitializeRequest,
    NewSessionRequest, PermissionOptionKind, PromptRequest, PromptResponse, ReadTextFileRequest, ReadTextFileResponse,
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse, SelectedPermissionOutcome,
    SessionNotification, SessionUpdate, StopReason, TextContent, ToolKind, WriteTextFileRequest, WriteTextFileResponse,
};
use agent_client_protocol::{self as acp, ByteStreams, Client};
use refile_config::{Agent, Tool};
use refile_core::failure::{Failure, FailureKind};
use refile_core::task::Usage;
use tokio::time::Instant;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::command::{provider_trouble, request};
use super::confined::Confined;
use super::transcript::Transcript;
use super::{Ended, Job, Ran, not_started, reach, resolve};
use crate::process::{Command, Exit, Talk, tail, without_secrets};

/// How long an agent may go on after it was asked to stop.
const GRACE: Duration = Duration::from_secs(2);
/// The longest message that is read, in bytes.
const LONGEST_MESSAGE: usize = 32 << 20;

/// How much of one message in pieces is kept, in bytes.
const LONGEST_SPEECH: usize = 1 << 20;

/// What is known of a session while it goes on.
struct Session {
    files: Arc<Confined>,
    agent: Agent,
    seen: Mutex<Seen>,
}

/// What the agent said and did so far.
struct Seen {
    transcript: Transcript,
    /// The message that is being said, in pieces.
    words: String,
    /// The whole message that was said last.
    last: String,
    kinds: HashMap<String, ToolKind>,
    cost_micros: u64,
}

/// Runs an agent to its end.
pub(super) async fn run(job: &Job<'_>) -> Ran {
    let started = Instant::now();
    let files = match Confined::open(job.tree.dir()) {
        Ok(files) => Arc::new(files),
        Err(error) => {
            let detail = format!("cannot open the attempt's tree: {error}");
            return Ran::not_started(Failure::new(FailureKind::Crash, detail));
        }
    };
    let argv = resolve(&job.agent.command, job.config_dir);
    let sandbox = job.tree.sandbox(&argv, reach(job.agent));
    let mut command = Command::new(argv, job.tree.dir(), job.agent.timeout.0).confined(sandbox);
    command.env = match job.surroundings() {
        Ok((_, env)) => env,
        Err(failure) => return Ran::not_started(failure),
    };
    let (talk, stdin, stdout) = match Talk::open(&command) {
        Ok(open) => open,
        Err(error) => return Ran::not_started(not_started(&error)),
    };
    let seen = Seen {
        transcript: Transcript::new(job.agent.env.clone()),
        words: String::new(),
        last: String::new(),
        kinds: HashMap::new(),
        cost_micros: 0,
    };
    let session = Arc::new(Session { files, agent: job.agent.clone(), seen: Mutex::new(seen) });
    let deadline = started + job.agent.timeout.0;
    let transport = ByteStreams::new(stdin.compat_write(), Lines { inner: stdout.compat(), length: 0 });
    let said = tokio::time::timeout_at(deadline + GRACE, converse(job, session.clone(), transport, deadline)).await;
    let (exit, stderr) = talk.end(GRACE).await;

    let mut seen = session.seen();
    seen.said();
    let mut usage = Usage { cost_micros: seen.cost_micros, ..Usage::default() };
    let last = std::mem::take(&mut seen.last);
    let ended = match said {
        Ok(Ok(Some(response))) => {
            usage += tokens(&response);
            ended(response.stop_reason, &last)
        }
        Ok(Ok(None)) | Err(_) => {
            let seconds = job.agent.timeout.0.as_secs_f64();
            Err(Failure::new(FailureKind::Timeout, format!("the agent had not ended after {seconds} s")))
        }
        Ok(Err(error)) => Err(broken(&job.agent.command, &error, exit, &without_secrets(&stderr, &job.agent.env))),
    };
    if !stderr.trim().is_empty() {
        seen.transcript.part("stderr:", stderr.trim());
    }
    match &ended {
        Ok((_, words)) => seen.transcript.note(&format!("ended: {words}")),
        Err(failure) => seen.transcript.note(&format!("failed: {failure}")),
    }
    let transcript = std::mem::replace(&mut seen.transcript, Transcript::new(Vec::new())).end();
    drop(seen);
    usage.wall_ms = started.elapsed().as_millis() as u64;
    let redacted = |text: &str| without_secrets(text, &job.agent.env);
    let (ended, summary) = match ended {
        Ok((Ended::Asks(words), summary)) => (Ok(Ended::Asks(redacted(&words))), summary),
        Ok((Ended::Says(words), summary)) => (Ok(Ended::Says(redacted(&words))), summary),
        Ok((Ended::Done, summary)) => (Ok(Ended::Done), summary),
        Err(failure) => (Err(failure), String::new()),
    };
    Ran { ended, summary: redacted(tail(&summary, 500)), transcript, usage }
}

/// One session with one prompt. Gives nothing where its time was up.
async fn converse(
    job: &Job<'_>,
    session: Arc<Session>,
    transport: impl acp::ConnectTo<Client> + 'static,
    deadline: Instant,
) -> Result<Option<PromptResponse>, acp::Error> {
    let (updates, permissions, reads, writes) = (session.clone(), session.clone(), session.clone(), session);
    let (cwd, prompt) = (job.tree.dir().to_owned(), job.prompt.to_owned());
    Client
        .v1()
        .name("refile")
        .on_receive_notification(
            async move |update: SessionNotification, _| {
                updates.seen().update(update.update);
                Ok(())
            },
            acp::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: RequestPermissionRequest, responder, _| {
                responder.respond(RequestPermissionResponse::new(permissions.permit(&request)))
            },
            acp::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: ReadTextFileRequest, responder, _| match reads.read(request).await {
                Ok(content) => responder.respond(ReadTextFileResponse::new(content)),
                Err(why) => responder.respond_with_error(acp::Error::invalid_params().data(why)),
            },
            acp::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: WriteTextFileRequest, responder, _| match writes.write(request).await {
                Ok(()) => responder.respond(WriteTextFileResponse::new()),
                Err(why) => responder.respond_with_error(acp::Error::invalid_params().data(why)),
            },
            acp::on_receive_request!(),
        )
        .connect_with(transport, async move |agent: ConnectionTo<acp::Agent>| {
            let files = FileSystemCapabilities::new().read_text_file(true).write_text_file(true);
            let hello = InitializeRequest::new(ProtocolVersion::V1)
                .client_capabilities(ClientCapabilities::new().fs(files))
                .client_info(schema::Implementation::new("refile", env!("CARGO_PKG_VERSION")));
            agent.send_request(hello).block_task().await?;
            let opened = agent.send_request(NewSessionRequest::new(cwd)).block_task().await?;
            let text = vec![ContentBlock::Text(TextContent::new(prompt))];
            let answer = agent.send_request(PromptRequest::new(opened.session_id.clone(), text)).block_task();
            tokio::pin!(answer);
            tokio::select! {
                response = &mut answer => response.map(Some),
                () = tokio::time::sleep_until(deadline) => {
                    agent.send_notification(CancelNotification::new(opened.session_id))?;
                    // What it answers now no longer counts; it may tidy up.
                    let _ = tokio::time::timeout(GRACE / 2, answer).await;
                    Ok(None)
                }
            }
        })
        .await
}

impl Session {
    /// What was seen so far. A thread that panicked while it held the lock left whole values behind.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to an agent that asks for leave: one of its own options, chosen by kind.
    fn permit(&self, request: &RequestPermissionRequest) -> RequestPermissionOutcome {
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

    async fn read(&self, request: ReadTextFileRequest) -> Result<String, String> {
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

    async fn write(&self, request: WriteTextFileRequest) -> Result<(), String> {
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
    fn update(&mut self, update: SessionUpdate) {
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                if let ContentBlock::Text(text) = chunk.content
                    && self.words.len() < LONGEST_SPEECH
                {
                    self.words.push_str(&text.text);
                }
            }
            SessionUpdate::ToolCall(call) => {
                self.said();
                self.kinds.insert(call.tool_call_id.to_string(), call.kind);
                let input = call.raw_input.map(|input| format!(" {input}")).unwrap_or_default();
                self.transcript.part(">", &format!("{:?} {}{input}", call.kind, call.title));
            }
            SessionUpdate::ToolCallUpdate(update) => {
                self.said();
                if let Some(kind) = update.fields.kind {
                    self.kinds.insert(update.tool_call_id.to_string(), kind);
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

    /// A message is whole once something else follows it.
    fn said(&mut self) {
        let words = std::mem::take(&mut self.words);
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

/// How a turn ended, with the words for a summary.
fn ended(stop: StopReason, last: &str) -> Result<(Ended, String), Failure> {
    match stop {
        StopReason::EndTurn => Ok((request(last).map_or(Ended::Done, Ended::Says), last.to_owned())),
        StopReason::Refusal => {
            let words = if last.trim().is_empty() { "the agent refused and did not say why" } else { last.trim() };
            Ok((Ended::Asks(words.to_owned()), String::new()))
        }
        StopReason::MaxTokens => Ok((Ended::Done, "stopped: its tokens are used up".to_owned())),
        StopReason::MaxTurnRequests => Ok((Ended::Done, "stopped: its steps are used up".to_owned())),
        StopReason::Cancelled => Err(Failure::new(FailureKind::Crash, "the agent cancelled its own work")),
        other => {
            Err(Failure::new(FailureKind::Malformed, format!("the agent stopped for an unknown reason: {other:?}")))
        }
    }
}

/// What it says that it used up.
fn tokens(response: &PromptResponse) -> Usage {
    let Some(usage) = &response.usage else { return Usage::default() };
    let input_tokens = usage.total_tokens.saturating_sub(usage.output_tokens).max(usage.input_tokens);
    Usage { input_tokens, output_tokens: usage.output_tokens, ..Usage::default() }
}

/// The failure that a broken conversation amounts to.
fn broken(command: &[String], error: &acp::Error, exit: Option<Exit>, stderr: &str) -> Failure {
    let said = error.to_string();
    let kind = match provider_trouble(&said).or_else(|| provider_trouble(tail(stderr, 4_000))) {
        Some(kind) => kind,
        None if error.code == acp::Error::auth_required().code => FailureKind::Auth,
        None => FailureKind::Crash,
    };
    let program = command.first().map_or("the agent", String::as_str);
    // Where it went away, how it ended says more than that it did.
    let said = match exit {
        Some(exit) if error.message.contains("closed") => format!("{exit} in the middle of its work"),
        _ => said,
    };
    let stderr = tail(stderr, 400);
    let stderr = if stderr.is_empty() { String::new() } else { format!(": {stderr}") };
    Failure::new(kind, format!("`{program}`: {said}{stderr}"))
}

/// Does what waits for a disk off the thread that everything else runs on.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// An output of lines none of which is too long.
struct Lines<R> {
    inner: R,
    /// Bytes since the last line's end.
    length: usize,
}

impl<R: futures::AsyncRead + Unpin> futures::AsyncRead for Lines<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<std::io::Result<usize>> {
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if let Poll::Ready(Ok(n)) = &read {
            let read = &buffer[..*n];
            self.length = read.iter().rposition(|byte| *byte == b'\n').map_or(self.length + n, |at| n - at - 1);
            if self.length > LONGEST_MESSAGE {
                let why = format!("a message is longer than {LONGEST_MESSAGE} bytes");
                return Poll::Ready(Err(std::io::Error::other(why)));
            }
        }
        read
    }
}
