//! `refile partitions`: how many partitions the queue has, and more of them.

use refile_core::counted;
use serde_json::json;

use crate::Ended;
use crate::arguments::PartitionsArguments;
use crate::context::Context;
use crate::output;

/// Says how many there are, after there are as many as are wanted.
pub(crate) async fn run(context: &Context, arguments: &PartitionsArguments) -> anyhow::Result<Ended> {
    let partitions = context.existing_store().await?.partitions(arguments.count).await?;
    if context.json {
        output::json(&json!({ "partitions": partitions }))?;
    } else {
        output::line(counted(partitions, "partition"));
    }
    Ok(Ended::Done)
}
