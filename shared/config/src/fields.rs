//! Which fields each type of reviewer and each way to land uses. One that is written and not used is an error: whoever wrote
//! it believes that it does something.

use toml::{Table, Value};

use crate::schema::{Config, Reviewer, ReviewerType, Strategy};
use ReviewerType::{Command, Llm, Panel};

/// Every field beside `type`, and the types that use it. A person is asked by an escalation and uses none.
const FIELDS: &[(&str, &[ReviewerType])] = &[
    ("command", &[Command]),
    ("env", &[Command]),
    ("network", &[Command]),
    ("provider", &[Llm]),
    ("fallback_model", &[Llm]),
    ("instructions", &[Llm]),
    ("max_tokens", &[Llm]),
    ("model", &[Command, Llm]),
    ("format", &[Command, Llm]),
    ("inputs", &[Command, Llm]),
    ("max_input_bytes", &[Command, Llm]),
    ("require", &[Command, Llm]),
    ("timeout", &[Command, Llm]),
    ("members", &[Panel]),
    ("rule", &[Panel]),
    ("output", &[Command, Llm, Panel]),
    ("continue_on_error", &[Command, Llm, Panel]),
    ("confidence", &[Command, Llm, Panel]),
    ("other_model_than_coder", &[Command, Llm, Panel]),
];

/// What matters only where a reviewer is asked on its own: within a panel it is the panel's that counts.
const OF_THOSE_IN_TURN: [&str; 2] = ["confidence", "continue_on_error"];

/// The fields that a file gives.
pub(crate) struct Written {
    /// Of each reviewer.
    reviewers: Vec<(String, Vec<String>)>,
    /// Of `[land]`.
    land: Vec<String>,
}

/// The fields that the file gives each reviewer and the landings.
pub(crate) fn written(file: &Table) -> Written {
    let sections = file.get("reviewers").and_then(Value::as_table).into_iter().flatten();
    let fields = |section: &Value| section.as_table().map(|s| s.keys().cloned().collect()).unwrap_or_default();
    Written {
        reviewers: sections.map(|(name, section)| (name.clone(), fields(section))).collect(),
        land: file.get("land").map(fields).unwrap_or_default(),
    }
}

/// Holds that each of them is used.
pub(crate) fn check(config: &Config, written: &Written) -> Result<(), String> {
    check_land(config.land.strategy, &written.land)?;
    for (name, fields) in &written.reviewers {
        let Some(reviewer) = config.reviewers.get(name) else { continue };
        for field in fields {
            check_one(config, name, reviewer, field)?;
        }
    }
    Ok(())
}

fn check_land(strategy: Strategy, fields: &[String]) -> Result<(), String> {
    let has = |field: &str| fields.iter().any(|written| written == field);
    if strategy == Strategy::PullRequest && has("batch") {
        return Err("land.batch is for changes that the fleet puts on the branch itself, and with land.strategy = \"pull_request\" \
                    each has a pull request of its own: leave it out"
            .to_owned());
    }
    if strategy != Strategy::PullRequest && has("merge") {
        return Err(
            "land.merge says who merges a pull request, and none is opened: leave it out, or set land.strategy = \
                    \"pull_request\""
                .to_owned(),
        );
    }
    Ok(())
}

fn check_one(config: &Config, name: &str, reviewer: &Reviewer, field: &str) -> Result<(), String> {
    let Some((_, types)) = FIELDS.iter().find(|(known, _)| *known == field) else { return Ok(()) };
    let key = format!("reviewers.{name}.{field}");
    if !types.contains(&reviewer.kind) {
        let known: Vec<&str> = types.iter().map(|kind| kind.as_str()).collect();
        let next = match reviewer.kind {
            Panel if types.contains(&Command) || types.contains(&Llm) => {
                format!("set it in the sections of its members: {}", reviewer.members.join(", "))
            }
            ReviewerType::Human => "leave it out: a person decides by an escalation".to_owned(),
            _ => match types {
                [one] => format!("leave it out, or set reviewers.{name}.type = \"{}\"", one.as_str()),
                _ => "leave it out".to_owned(),
            },
        };
        let kind = reviewer.kind.as_str();
        return Err(format!(
            "{key} is for reviewers of type {}, and this one is of type {kind}: {next}",
            known.join(" or ")
        ));
    }
    let panels: Vec<&str> =
        config.reviewers.iter().filter(|(_, r)| r.members.iter().any(|m| m == name)).map(|(p, _)| p.as_str()).collect();
    let is_asked_alone = panels.is_empty() || config.reviewers.get_index_of(name) == Some(0);
    if !is_asked_alone && OF_THOSE_IN_TURN.contains(&field) {
        let panel = panels[0];
        return Err(format!(
            "{key} is for reviewers that are asked on their own, and `{name}` is asked as a member of `{panel}` only: set \
             reviewers.{panel}.{field}, or leave it out"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::{check_error, load_text};

    /// A value that fits each field.
    const VALUES: &[(&str, &str)] = &[
        ("command", "[\"x\"]"),
        ("env", "[]"),
        ("network", "true"),
        ("provider", "\"p\""),
        ("fallback_model", "\"m-2\""),
        ("instructions", "\"Mind the locks.\""),
        ("max_tokens", "2000"),
        ("model", "\"m\""),
        ("format", "\"json\""),
        ("inputs", "[\"diff\"]"),
        ("max_input_bytes", "200000"),
        ("require", "{ inputs = [\"diff\"] }"),
        ("timeout", "\"2m\""),
        ("members", "[\"a\"]"),
        ("rule", "\"majority\""),
        ("output", "\"word\""),
        ("continue_on_error", "false"),
        ("confidence", "0.6"),
        ("other_model_than_coder", "false"),
    ];

    /// A section of this type that needs nothing more, and what comes with it.
    fn section(kind: ReviewerType, field: &str, value: &str) -> String {
        let needed: &[(&str, &str)] = match kind {
            Command => &[("command", "[\"x\"]")],
            Llm => &[("provider", "\"p\""), ("model", "\"m\"")],
            Panel => &[("members", "[\"a\"]")],
            ReviewerType::Human => &[],
        };
        let needed =
            needed.iter().filter(|(name, _)| *name != field).map(|(name, value)| format!("{name} = {value}\n"));
        let needed: String = needed.collect();
        let line = if field.is_empty() { String::new() } else { format!("{field} = {value}\n") };
        format!(
            "[reviewers.r]\ntype = \"{}\"\n{needed}{line}[reviewers.a]\ncommand = [\"x\"]\n[providers.p]\nkind = \"openai\"\n",
            kind.as_str()
        )
    }

    #[test]
    fn a_field_is_taken_by_the_types_that_use_it_and_by_no_other() {
        let types = [Command, Llm, ReviewerType::Human, Panel];
        for kind in types {
            load_text(&section(kind, "", ""), &[], &[]).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
            for ((field, uses), (name, value)) in FIELDS.iter().zip(VALUES) {
                assert_eq!(field, name);
                let text = section(kind, field, value);
                if uses.contains(&kind) {
                    load_text(&text, &[], &[]).unwrap_or_else(|e| panic!("{kind:?}.{field}: {e}"));
                } else {
                    let named = format!("reviewers.r.{field} is for reviewers of type");
                    check_error(&text, &[&named, &format!("is of type {}", kind.as_str())]);
                }
            }
        }
        // What to do is said.
        check_error(&section(Panel, "timeout", "\"1m\""), &["in the sections of its members: a"]);
        check_error(&section(Command, "instructions", "\"x\""), &["set reviewers.r.type = \"llm\""]);
        check_error(&section(ReviewerType::Human, "timeout", "\"1m\""), &["leave it out: a person decides"]);
    }

    #[test]
    fn what_a_way_to_land_does_not_use_is_refused() {
        let land = |text: &str| format!("[land]\n{text}\n");
        for taken in [
            "strategy = \"pull_request\"\nmerge = \"auto\"",
            "strategy = \"pull_request\"",
            "strategy = \"rebase\"\nbatch = 4",
            "batch = 4",
        ] {
            load_text(&land(taken), &[], &[]).unwrap_or_else(|e| panic!("{taken}: {e}"));
        }
        check_error(&land("strategy = \"pull_request\"\nbatch = 4"), &["land.batch is for", "leave it out"]);
        for strategy in ["", "strategy = \"squash\"\n", "strategy = \"merge\"\n"] {
            let says = ["land.merge says who merges a pull request", "set land.strategy = \"pull_request\""];
            check_error(&land(&format!("{strategy}merge = \"auto\"")), &says);
        }
    }

    #[test]
    fn every_field_of_a_reviewer_is_in_the_table() {
        let error = load_text("[reviewers.r]\nzzz = 1\n", &[], &[]).unwrap_err().to_string();
        let (_, known) = error.split_once("expected one of ").unwrap();
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).filter(|name| *name != "type").collect();
        assert!(known.contains(&"command"), "{error}");
        for field in known {
            assert!(FIELDS.iter().any(|(name, _)| *name == field), "{field} is used by which types?");
        }
    }

    #[test]
    fn what_counts_only_in_turn_is_refused_of_a_mere_member() {
        let member = |field: &str| {
            format!(
                "[reviewers.both]\ntype = \"panel\"\nmembers = [\"a\"]\n[reviewers.a]\ncommand = [\"x\"]\nformat = \"json\"\n{field}\n"
            )
        };
        load_text(&member("output = \"x\""), &[], &[]).unwrap();
        let says = ["reviewers.a.confidence", "member of `both`", "reviewers.both.confidence"];
        check_error(&member("confidence = 0.6"), &says);
        check_error(&member("continue_on_error = true"), &["reviewers.a.continue_on_error", "`both`"]);
        // The first one of the file is asked on its own, too.
        let first = "[reviewers.a]\ncommand = [\"x\"]\nformat = \"json\"\nconfidence = 0.7\n\
                     [reviewers.both]\ntype = \"panel\"\nmembers = [\"a\"]\n";
        load_text(first, &[], &[]).unwrap();
    }
}
