//! Holds the documents against the program: each example of a configuration in them is one.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::path::Path;

use common::command::Desk;

const DOCUMENTS: [&str; 5] =
    ["README.md", "docs/agents.md", "docs/reviewers.md", "docs/gates-and-landing.md", "docs/operating.md"];

/// Sections that an example may name without showing them.
const NAMED: [(&str, &str); 6] = [
    ("[agents.fixer]", "command = [\"true\"]\nmodel = \"its-own\""),
    ("[reviewers.strict]", "command = [\"true\"]\nmodel = \"its-own\""),
    ("[reviewers.second]", "command = [\"true\"]\nmodel = \"its-own\""),
    ("[reviewers.judge]", "command = [\"true\"]\nmodel = \"its-own\""),
    ("[providers.anthropic]", "kind = \"anthropic\""),
    ("[repository]", "url = \"https://example.org/a.git\""),
];

#[test]
fn every_example_of_a_configuration_is_accepted() {
    let mut examples = 0;
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(document)).unwrap();
        for block in text.split("```toml\n").skip(1) {
            let shown = block.split("```").next().unwrap();
            let named = NAMED.iter().filter(|(section, _)| !shown.contains(section));
            let named: Vec<String> = named.map(|(section, lines)| format!("{section}\n{lines}\n")).collect();
            let config = format!("{shown}\n{}", named.join("\n"));
            let place = Desk::empty();
            place.write("refile.toml", &config);
            let ran = place.run(&["config", "show"]);
            assert_eq!(ran.status, 0, "{document}:\n{config}\n{}", ran.err);
            examples += 1;
        }
    }
    assert!(examples >= 12, "{examples}");
}
