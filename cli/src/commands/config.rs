//! `refile config show`: every value that is in force, and where it comes from.

use refile_config::show::lines;
use serde_json::json;

use crate::Ended;
use crate::context::Context;
use crate::output;
use refile_store::error::without_password;

/// Prints the values.
pub(crate) fn show(context: &Context) -> anyhow::Result<Ended> {
    let mut lines = lines(&context.config, &context.sources);
    // Addresses may hold a password.
    let is_address = |key: &str| matches!(key, "store" | "repository.url") || key.ends_with(".base_url");
    for line in lines.iter_mut().filter(|l| is_address(&l.key)) {
        if let Some(address) = line.value.as_str() {
            line.value = without_password(address).into();
        }
    }
    for line in &mut lines {
        if let Some(address) = line.key.strip_prefix("limits.repositories.") {
            line.key = format!("limits.repositories.{}", without_password(address));
        }
    }
    context.config.warnings().iter().for_each(output::note);
    if context.json {
        let values: Vec<_> =
            lines.iter().map(|l| json!({ "key": l.key, "value": l.value, "source": l.source.to_string() })).collect();
        output::json(&values)?;
        return Ok(Ended::Done);
    }
    let mut table = output::table(&["key", "value", "from"]);
    for line in &lines {
        table.add_row([line.key.clone(), line.value.to_string(), line.source.to_string()]);
    }
    output::print_table(&table, "");
    Ok(Ended::Done)
}
