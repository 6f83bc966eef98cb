//! What an agent says is put away while it still works: people can look on, and a run that is killed leaves it.

use std::time::Duration;

use refile_store::artifacts::Shelf;
use tokio_util::sync::CancellationToken;

/// The artifact with what an agent said and did.
pub const TRANSCRIPT: &str = "transcript.log";
/// How often it is put away while it grows.
const EVERY: Duration = Duration::from_secs(3);

/// Runs an agent to its end, and puts away what it said so far whenever there is more. `so_far` is given how much was known
/// before, and gives how much there is now, with all of it, where that is another number.
pub(super) async fn shown<T>(
    shelf: &Shelf,
    run: impl Future<Output = T>,
    so_far: impl Fn(usize) -> Option<(usize, String)>,
) -> T {
    let ended = CancellationToken::new();
    let run = async {
        let ran = run.await;
        ended.cancel();
        ran
    };
    let show = async {
        let mut known = 0;
        while ended.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            let Some((length, text)) = so_far(known) else { continue };
            known = length;
            // One that is under way is waited for: it must not come after the last one.
            if let Err(error) = shelf.put(TRANSCRIPT, text).await {
                tracing::debug!(%error, "what an agent said so far could not be put away");
            }
        }
    };
    tokio::join!(run, show).0
}
