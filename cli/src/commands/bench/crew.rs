//! The members of one run and how they are led: all get ready, go, and are stopped when the work is done.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use refile_store::Store;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::child;
use super::member::{self, Figures, Kind, Said, Spec, Told};

/// How long a run may go on without a word from any member.
const SILENCE: Duration = Duration::from_mins(2);

/// How a member is told.
enum Ear {
    /// Through the standard input of its process; a line each.
    Process(Box<(ChildStdin, Child)>),
    /// In this process.
    Here(mpsc::UnboundedSender<Told>),
}

/// The members of one run. Those that still run when it is dropped are ended.
pub(super) struct Crew {
    members: Vec<(Kind, Ear)>,
    said: mpsc::UnboundedReceiver<(usize, Said)>,
    /// Members of this process, and whoever listens to the others.
    here: JoinSet<()>,
}

impl Crew {
    /// Starts members as processes of their own, or in this one where they share a store; and waits until all are ready.
    pub(super) async fn start(specs: Vec<Spec>, store: Option<Arc<dyn Store>>) -> anyhow::Result<Self> {
        let (say, said) = mpsc::unbounded_channel();
        let mut crew = Self { members: Vec::new(), said, here: JoinSet::new() };
        for (number, spec) in specs.into_iter().enumerate() {
            let (kind, say) = (spec.kind, say.clone());
            let ear = match &store {
                Some(store) => crew.start_here(number, spec, store.clone(), say),
                None => crew.start_process(number, &spec, say).await?,
            };
            crew.members.push((kind, ear));
        }
        for _ in 0..crew.members.len() {
            match crew.hear().await? {
                (_, Said::Ready) => {}
                (kind, said) => bail!("{kind:?} was to get ready and said {said:?}"),
            }
        }
        Ok(crew)
    }

    fn start_here(
        &mut self,
        number: usize,
        spec: Spec,
        store: Arc<dyn Store>,
        say: mpsc::UnboundedSender<(usize, Said)>,
    ) -> Ear {
        let (tell, told) = mpsc::unbounded_channel();
        let (tell_here, mut heard) = mpsc::unbounded_channel();
        self.here.spawn(member::run(spec, Some(store), told, tell_here));
        self.here.spawn(async move {
            while let Some(said) = heard.recv().await {
                let _ = say.send((number, said));
            }
        });
        Ear::Here(tell)
    }

    async fn start_process(
        &mut self,
        number: usize,
        spec: &Spec,
        say: mpsc::UnboundedSender<(usize, Said)>,
    ) -> anyhow::Result<Ear> {
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        let mut child = Command::new(program)
            .arg(child::COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a process of the benchmark")?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a process of the benchmark has no standard streams");
        };
        // Not an argument: the URL may hold a password, and everybody sees arguments.
        stdin.write_all(child::line(spec)?.as_bytes()).await?;
        let kind = spec.kind;
        self.here.spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            let mut has_result = false;
            while let Ok(Some(line)) = lines.next_line().await {
                let said = serde_json::from_str(&line)
                    .unwrap_or_else(|error| Said::Failed(format!("{kind:?} said {line:?}: {error}")));
                has_result = matches!(said, Said::Result(_));
                let _ = say.send((number, said));
            }
            if !has_result {
                let _ = say.send((number, Said::Failed(format!("the process of {kind:?} ended"))));
            }
        });
        Ok(Ear::Process(Box::new((stdin, child))))
    }

    /// Lets everybody go, the submitter last; waits until these are done.
    pub(super) async fn go(&mut self, until_done: &[Kind], bar: &ProgressBar) -> anyhow::Result<()> {
        let is_submitter = |kind: Kind| matches!(kind, Kind::Submitter | Kind::LimitSubmitter);
        for (kind, ear) in &mut self.members {
            if !is_submitter(*kind) {
                tell(ear, Told::Go).await?;
            }
        }
        for (kind, ear) in &mut self.members {
            if is_submitter(*kind) {
                tell(ear, Told::Go).await?;
            }
        }
        let mut waiting = until_done.to_vec();
        let mut changed = Instant::now();
        while !waiting.is_empty() {
            match self.hear().await? {
                (_, Said::Progress(ended)) if ended != bar.position() => {
                    bar.set_position(ended);
                    changed = Instant::now();
                }
                (_, Said::Progress(ended)) if changed.elapsed() > SILENCE => {
                    bail!("no task has ended for {} s after {ended} did", SILENCE.as_secs());
                }
                (kind, Said::Done) => waiting.retain(|k| *k != kind),
                _ => {}
            }
        }
        Ok(())
    }

    /// Stops everybody and gives what each saw.
    pub(super) async fn stop(mut self) -> anyhow::Result<Vec<(Kind, Figures)>> {
        for (_, ear) in &mut self.members {
            tell(ear, Told::Stop).await?;
        }
        let mut figures = Vec::with_capacity(self.members.len());
        while figures.len() < self.members.len() {
            if let (kind, Said::Result(seen)) = self.hear().await? {
                figures.push((kind, seen));
            }
        }
        for (_, ear) in self.members.drain(..) {
            if let Ear::Process(process) = ear {
                let (stdin, mut child) = *process;
                drop(stdin);
                child.wait().await?;
            }
        }
        // A shared store is closed when the last member has let it go.
        while self.here.join_next().await.is_some() {}
        Ok(figures)
    }

    async fn hear(&mut self) -> anyhow::Result<(Kind, Said)> {
        let heard = tokio::time::timeout(SILENCE, self.said.recv()).await;
        match heard {
            Ok(Some((number, Said::Failed(why)))) => {
                bail!("the benchmark's {:?} failed: {why}", self.members[number].0)
            }
            Ok(Some((number, said))) => Ok((self.members[number].0, said)),
            Ok(None) => bail!("every process of the benchmark ended"),
            Err(_) => bail!("no process of the benchmark said anything for {} s", SILENCE.as_secs()),
        }
    }
}

async fn tell(ear: &mut Ear, what: Told) -> anyhow::Result<()> {
    match ear {
        // Where it has ended, that is what is heard next.
        Ear::Process(process) => drop(process.0.write_all(child::line(&what)?.as_bytes()).await),
        Ear::Here(tell) => drop(tell.send(what)),
    }
    Ok(())
}
