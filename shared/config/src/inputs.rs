//! What a reviewer is given to judge by, and what must hold for its word to count.

use serde::{Deserialize, Serialize};

/// One part of the packet that a reviewer judges by; they stand in it in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// The task's title and description.
    Issue,
    /// What this attempt had to do, where an earlier one was rejected.
    PreviousRequiredChange,
    /// The coder's own words about its work: a claim, and no evidence.
    Summary,
    /// What the gates said.
    #[serde(alias = "test_output")]
    GateOutput,
    /// The changed files with their whole new content.
    Files,
    /// The diff.
    #[serde(alias = "git_diff")]
    Diff,
}

impl Input {
    /// Every part, in the packet's order.
    pub const ALL: [Self; 6] =
        [Self::Issue, Self::PreviousRequiredChange, Self::Summary, Self::GateOutput, Self::Files, Self::Diff];

    /// What a reviewer is given where nothing else is said. The coder's own words are not in it.
    pub fn default_list() -> Vec<Self> {
        vec![Self::Issue, Self::PreviousRequiredChange, Self::GateOutput, Self::Diff]
    }

    /// The name in the configuration and in the packet.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Issue => "issue",
            Self::PreviousRequiredChange => "previous_required_change",
            Self::Summary => "summary",
            Self::GateOutput => "gate_output",
            Self::Files => "files",
            Self::Diff => "diff",
        }
    }

    /// Whether it shows something of the change itself, and is not only the question or the coder's word for it.
    pub fn is_evidence(self) -> bool {
        matches!(self, Self::GateOutput | Self::Files | Self::Diff)
    }
}

/// What must hold for a reviewer's word to count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Require {
    /// Inputs that must hold something, or the reviewer is not asked at all and the review has failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// What the judge must say for the change to go on.
    #[serde(skip_serializing_if = "Answer::is_pass")]
    pub verdict: Answer,
}

impl Require {
    /// Whether nothing more is asked than of every reviewer.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// What a judge must say for the change to go on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// That it passes.
    #[default]
    #[serde(alias = "approved")]
    Pass,
    /// That it fails: the instructions put the question the other way round, as in "does it leak a secret?".
    Fail,
}

impl Answer {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
    fn is_pass(&self) -> bool {
        *self == Self::Pass
    }
}

/// Why what a reviewer is told to judge by makes no sense; nothing where it does. `key` is the reviewer's.
pub(crate) fn check(key: &str, reviewer: &crate::Reviewer) -> Result<(), String> {
    let inputs = &reviewer.inputs;
    if !inputs.iter().any(|input| input.is_evidence()) {
        return Err(format!(
            "{key}.inputs shows nothing of the change itself; add `diff`, or `files`, or `gate_output`"
        ));
    }
    if let Some(lacking) = reviewer.require.inputs.iter().find(|input| !inputs.contains(input)) {
        let name = lacking.as_str();
        return Err(format!("{key}.require.inputs names `{name}`, which is not in {key}.inputs; add it there"));
    }
    if reviewer.require.verdict == Answer::Fail && reviewer.format() != refile_core::verdict::Format::Judge {
        return Err(format!(
            "{key}.require.verdict = \"fail\" needs a reviewer that says pass or fail; set {key}.format = \"judge\""
        ));
    }
    if reviewer.require.verdict == Answer::Fail && reviewer.instructions.is_none() {
        return Err(format!(
            "{key}.require.verdict = \"fail\" needs {key}.instructions: the question to which the answer must be `fail`"
        ));
    }
    if reviewer.max_input_bytes < crate::Reviewer::MIN_INPUT_BYTES {
        return Err(format!("{key}.max_input_bytes must be at least {}", crate::Reviewer::MIN_INPUT_BYTES));
    }
    let is_word = |name: &str| {
        (1..=64).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    };
    match &reviewer.output {
        Some(name) if !is_word(name) => {
            Err(format!("{key}.output is `{name}`; use at most 64 letters, digits, `_` and `-`"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::{check_error, load_text};

    /// A reviewer with more in its section.
    fn judge(more: &str) -> String {
        format!(
            "[reviewers.j]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m\"\n{more}\n[providers.p]\nkind = \"anthropic\"\n"
        )
    }

    #[test]
    fn every_field_of_a_judge_stage_is_read() {
        let text = "[reviewers.review]\ntype = \"llm\"\nmodel = \"anthropic/claude-sonnet-4-6\"\n\
                    inputs = [\"issue\", \"git_diff\", \"test_output\"]\nrequire = { verdict = \"pass\" }\n\
                    instructions = \"Review.\"\noutput = \"review_result\"\ncontinue_on_error = true\n\
                    max_tokens = 900\ntimeout = \"2m\"\n[providers.anthropic]\nkind = \"anthropic\"\n";
        let (config, _) = load_text(text, &[], &[]).unwrap();
        let review = &config.reviewers["review"];
        assert_eq!(review.inputs, [Input::Issue, Input::Diff, Input::GateOutput]);
        assert_eq!(
            (review.provider.as_deref(), review.model.as_deref()),
            (Some("anthropic"), Some("claude-sonnet-4-6"))
        );
        assert!(review.require.is_usual() && review.continue_on_error);
        assert_eq!((review.output.as_deref(), review.max_tokens), (Some("review_result"), 900));
        assert!(config.policy().reviewers[0].continue_on_error);
        let (config, _) = load_text(&judge(""), &[], &[]).unwrap();
        let expected = [Input::Issue, Input::PreviousRequiredChange, Input::GateOutput, Input::Diff];
        assert_eq!(config.reviewers["j"].inputs, expected);
        // A path in a model's name is not a provider's where the provider is named, or where there is no such one.
        let gateway = judge("").replace("\"m\"", "\"p/m\"");
        assert_eq!(load_text(&gateway, &[], &[]).unwrap().0.reviewers["j"].model.as_deref(), Some("p/m"));
        check_error(&text.replace("anthropic/", "meta/"), &["reviewers.review needs a `provider`"]);
    }

    #[test]
    fn inputs_that_make_no_sense_are_refused() {
        check_error(&judge("inputs = [\"diff\", \"isue\"]"), &["isue", "line 5", "did you mean `issue`?"]);
        check_error(&judge("inputs = []"), &["reviewers.j.inputs", "`diff`"]);
        check_error(&judge("inputs = [\"issue\", \"summary\"]"), &["reviewers.j.inputs", "nothing of the change"]);
        check_error(&judge("require = { inputs = [\"files\"] }"), &["require.inputs", "`files`"]);
        check_error(&judge("require = { verdict = \"fail\" }"), &["require.verdict", "format = \"judge\""]);
        let turned = "format = \"judge\"\nrequire = { verdict = \"fail\", inputs = [\"gate_output\"] }";
        check_error(&judge(turned), &["require.verdict", "reviewers.j.instructions"]);
        load_text(&judge(&format!("{turned}\ninstructions = \"Is it slower?\"")), &[], &[]).unwrap();
        check_error(&judge("require = { verdct = \"pass\" }"), &["verdct", "did you mean `verdict`?"]);
        check_error(&judge("output = \"../x\""), &["reviewers.j.output", "../x"]);
        check_error(&judge("max_input_bytes = 100"), &["reviewers.j.max_input_bytes", "4000"]);
    }
}
