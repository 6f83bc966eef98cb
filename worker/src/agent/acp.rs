//! A program that speaks the Agent Client Protocol: we are its client.
//!
//! It works in the attempt's tree. Leave that it asks for is given by `allowed_tools`, by the kind of what it wants to do;
//! files that it reads and writes through us are those of the tree; there is no terminal of ours. What it does by itself is
//! bounded as with every other command, no further.
//!
//! Where its time is up or its lease is lost it is asked to stop (`session/cancel`), and its process group is killed soon
//! after. What it says after that counts for nothing.
//!
//! # Layout
//! - `session`: what it may do through us, and what is kept of what it says
//! - `wire`: the lines between us

mod session;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    self, CancelNotification, ClientCapabilities, ContentBlock, FileSystemCapabilities, InitializeRequest,
    NewSessionRequest, PromptRequest, PromptResponse, ReadTextFileRequest, ReadTextFileResponse,
    RequestPermissionRequest, RequestPermissionResponse, SessionNotification, StopReason, TextContent,
    WriteTextFileRequest, WriteTextFileResponse,
};
use agent_client_protocol::{self as acp, Client};
use refile_config::Agent;
use refile_core::failure::{Failure, FailureKind, Scope};
use refile_core::task::Usage;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::command::{provider_trouble, request};
use super::confined::Confined;
use super::shown::shown;
use super::{Ended, Job, Ran, no_room, not_started, reach, resolve};
use crate::process::{Command, Exit, Sandbox, Secrets, Talk, environment, tail};
use session::Session;

/// How long an agent may go on after it was asked to stop.
const GRACE: Duration = Duration::from_secs(2);
/// How long it may take to say what it is.
const GREETING: Duration = Duration::from_secs(10);

/// The program of an agent with its arguments.
fn argv(agent: &Agent) -> Vec<String> {
    agent.command.iter().chain(&agent.args).cloned().collect()
}

/// Runs an agent to its end.
pub(super) async fn run(job: &Job<'_>) -> Ran {
    let started = Instant::now();
    let files = match Confined::open(job.tree.dir()) {
        Ok(files) => files,
        Err(error) => {
            let detail = format!("cannot open the attempt's tree: {error}");
            return Ran::not_started(Failure::new(FailureKind::Crash, detail));
        }
    };
    let argv = resolve(&argv(job.agent), job.config_dir);
    let sandbox = job.tree.sandbox(&argv, reach(job.agent));
    let secrets = job.secrets;
    let mut command = Command::new(argv, job.tree.dir(), job.agent.timeout.0).confined(sandbox);
    command.secrets = secrets.clone();
    command.env = match job.surroundings() {
        Ok((_, env)) => env,
        Err(failure) => return Ran::not_started(failure),
    };
    let open = match Talk::open(&command) {
        Ok(open) => open,
        Err(error) => return Ran::not_started(not_started(&error)),
    };
    let session = Arc::new(Session::new(files, job.agent.clone(), secrets));
    // A task of its own: where this future is dropped, it is still asked to stop.
    let stop = CancellationToken::new();
    let _dropped = stop.clone().drop_guard();
    let turn = Turn {
        prompt: job.prompt.to_owned(),
        cwd: job.tree.dir().to_owned(),
        deadline: started + job.agent.timeout.0,
        stop,
        sandbox: command.sandbox.clone(),
    };
    let talked = tokio::spawn(talk(open, session.clone(), turn));
    let talked = shown(job.shelf, talked, |known| session.so_far(known)).await;
    let Talked { said, exit, stderr } = talked.unwrap_or_else(|error| Talked {
        said: Err(acp::Error::internal_error().data(error.to_string())),
        exit: None,
        stderr: String::new(),
    });

    let mut seen = session.seen();
    seen.said();
    let mut usage = Usage { cost_micros: seen.cost_micros, ..Usage::default() };
    let last = std::mem::take(&mut seen.last);
    let ended = match said {
        Ok(Some(response)) => {
            usage += tokens(&response);
            ended(response.stop_reason, &last)
        }
        Ok(None) if exit == Some(Exit::NoRoom) => Err(no_room("the agent")),
        Ok(None) => {
            let seconds = job.agent.timeout.0.as_secs_f64();
            Err(Failure::new(FailureKind::Timeout, format!("the agent had not ended after {seconds} s")))
        }
        Err(error) => Err(broken(&job.agent.command, &secrets.hide(&error.to_string()), &error, exit, &stderr)),
    };
    if !stderr.trim().is_empty() {
        seen.transcript.part("stderr:", stderr.trim());
    }
    match &ended {
        Ok((_, words)) => seen.transcript.note(&format!("ended: {words}")),
        Err(failure) => seen.transcript.note(&format!("failed: {failure}")),
    }
    let transcript = seen.transcript.with("");
    drop(seen);
    usage.wall_ms = started.elapsed().as_millis() as u64;
    // What it said came without secrets.
    let (ended, summary) = match ended {
        Ok((ended, summary)) => (Ok(ended), summary),
        Err(failure) => (Err(failure), String::new()),
    };
    Ran { ended, summary: tail(&summary, 500).to_owned(), transcript, usage }
}

/// What an agent is asked to do, and until when.
struct Turn {
    prompt: String,
    cwd: PathBuf,
    deadline: Instant,
    /// Nobody waits for it any more.
    stop: CancellationToken,
    /// What it is confined by.
    sandbox: Option<Sandbox>,
}

/// What came of it.
struct Talked {
    /// Nothing where it had to be stopped.
    said: Result<Option<PromptResponse>, acp::Error>,
    exit: Option<Exit>,
    stderr: String,
}

/// One session with one prompt, and the end of the agent.
async fn talk((talk, stdin, stdout): (Talk, ChildStdin, ChildStdout), session: Arc<Session>, turn: Turn) -> Talked {
    let (stop, deadline, sandbox) = (turn.stop.clone(), turn.deadline, turn.sandbox.clone());
    let no_room = async {
        match &sandbox {
            Some(sandbox) => sandbox.no_room().await,
            None => std::future::pending().await,
        }
    };
    let given_up = async {
        tokio::select! {
            () = stop.cancelled() => tokio::time::sleep(GRACE).await,
            () = tokio::time::sleep_until(deadline + GRACE) => {}
        }
    };
    let said = tokio::select! {
        said = Box::pin(converse(wire::lines(stdin, stdout), session, turn)) => said,
        () = given_up => Ok(None),
        () = no_room => return Talked { said: Ok(None), exit: Some(Exit::NoRoom), stderr: talk.end(GRACE).await.1 },
    };
    let grace = if stop.is_cancelled() { Duration::ZERO } else { GRACE };
    let (exit, stderr) = talk.end(grace).await;
    Talked { said, exit, stderr }
}

/// Gives nothing where its time was up, or nobody waits for it any more.
async fn converse(
    transport: impl acp::ConnectTo<Client> + 'static,
    session: Arc<Session>,
    turn: Turn,
) -> Result<Option<PromptResponse>, acp::Error> {
    let (updates, permissions, reads, writes) = (session.clone(), session.clone(), session.clone(), session);
    let Turn { prompt, cwd, deadline, stop, .. } = turn;
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
            agent.send_request(hello()).block_task().await?;
            let opened = agent.send_request(NewSessionRequest::new(cwd)).block_task().await?;
            let text = vec![ContentBlock::Text(TextContent::new(prompt))];
            let answer = agent.send_request(PromptRequest::new(opened.session_id.clone(), text)).block_task();
            tokio::pin!(answer);
            let over = async {
                let _ = tokio::time::timeout_at(deadline, stop.cancelled()).await;
            };
            tokio::select! {
                response = &mut answer => response.map(Some),
                () = over => {
                    agent.send_notification(CancelNotification::new(opened.session_id))?;
                    // What it answers now no longer counts; it may tidy up.
                    let _ = tokio::time::timeout(GRACE / 2, answer).await;
                    Ok(None)
                }
            }
        })
        .await
}

/// What we are and what we do for an agent.
fn hello() -> InitializeRequest {
    let files = FileSystemCapabilities::new().read_text_file(true).write_text_file(true);
    InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(ClientCapabilities::new().fs(files))
        .client_info(schema::Implementation::new("refile", env!("CARGO_PKG_VERSION")))
}

/// Starts an agent in a folder, and gives its name and version as it says them when it is greeted. It is asked nothing.
pub async fn greet(agent: &Agent, config_dir: &Path, cwd: &Path) -> Result<Option<String>, Failure> {
    let secrets = Secrets::of(&agent.env);
    let mut command = Command::new(resolve(&argv(agent), config_dir), cwd, GREETING);
    command.env = environment(&agent.env);
    command.secrets = secrets.clone();
    let (talk, stdin, stdout) = Talk::open(&command).map_err(|error| not_started(&error))?;
    let greeting =
        Client.v1().name("refile").connect_with(wire::lines(stdin, stdout), async |agent: ConnectionTo<acp::Agent>| {
            agent.send_request(hello()).block_task().await
        });
    let said = tokio::time::timeout(GREETING, Box::pin(greeting)).await;
    let (exit, stderr) = talk.end(GRACE).await;
    match said {
        Ok(Ok(said)) => Ok(said.agent_info.map(|it| secrets.hide(&format!("{} {}", it.name, it.version)))),
        Ok(Err(error)) => Err(broken(&agent.command, &secrets.hide(&error.to_string()), &error, exit, &stderr)),
        Err(_) => {
            let detail = format!("it did not answer `initialize` within {} s", GREETING.as_secs());
            Err(Failure::new(FailureKind::Timeout, detail))
        }
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
fn broken(command: &[String], said: &str, error: &acp::Error, exit: Option<Exit>, stderr: &str) -> Failure {
    let kind = match provider_trouble(said).or_else(|| provider_trouble(tail(stderr, 4_000))) {
        Some(kind) => kind,
        None if error.code == acp::Error::auth_required().code => FailureKind::Auth,
        None => FailureKind::Crash,
    };
    let program = command.first().map_or("the agent", String::as_str);
    // Where it went away, how it ended says more than that it did.
    let said = match exit {
        Some(exit) if error.message.contains("closed") || said.contains("Broken pipe") => {
            format!("{exit} in the middle of its work")
        }
        _ => said.to_owned(),
    };
    let stderr = tail(stderr, 400);
    let stderr = if stderr.is_empty() { String::new() } else { format!(": {stderr}") };
    // What it says itself holds for its next run, too; what stands in its log holds for this one.
    let is_certain = kind == FailureKind::Auth || provider_trouble(&error.message).is_some();
    let scope = if is_certain { Scope::Key } else { Scope::Call };
    Failure { scope, ..Failure::new(kind, format!("`{program}`: {said}{stderr}")) }
}
