//! `refile verdict parse`: the verdict that a reply holds.

use std::io::Read;

use anyhow::Context as _;
use refile_core::verdict::{Format, read};

use crate::Ended;
use crate::arguments::{ParseArguments, ReplyFormat};
use crate::output;

/// The largest reply that is read, in bytes.
const MAX_REPLY: u64 = 64 << 20;

/// Prints the verdict as JSON. The verdict does not change the exit status.
pub(crate) fn parse(arguments: &ParseArguments) -> anyhow::Result<Ended> {
    let mut reply = Vec::new();
    match &arguments.file {
        Some(path) if path.as_os_str() != "-" => {
            let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            file.take(MAX_REPLY).read_to_end(&mut reply)?;
        }
        _ => {
            std::io::stdin().lock().take(MAX_REPLY).read_to_end(&mut reply)?;
        }
    }
    let format = match arguments.format {
        ReplyFormat::Json => Format::Json,
        ReplyFormat::Text => Format::Text,
        ReplyFormat::Judge => Format::Judge,
    };
    output::json(&read(format, &String::from_utf8_lossy(&reply)))?;
    Ok(Ended::Done)
}
