//! What follows from the sections of reviewers: who is asked in whose turn, by which thresholds, and what cannot be.

use indexmap::IndexMap;
use refile_core::policy;
use refile_core::verdict::Format;

use crate::Threshold;
use crate::nearest::hint;
use crate::prices;
use crate::schema::{Config, Reviewer, ReviewerType};

impl Config {
    /// The reviewers that are asked on their own, in order: the first one, and those that are no member of a panel.
    pub(crate) fn reviewers_in_turn(&self) -> Vec<policy::Reviewer> {
        let is_member = |name: &String| self.reviewers.values().any(|r| r.members.contains(name));
        let in_turn = self.reviewers.iter().enumerate().filter(|(at, (name, _))| *at == 0 || !is_member(name));
        in_turn
            .map(|(_, (name, reviewer))| policy::Reviewer {
                name: name.clone(),
                confidence: reviewer.confidence.and_then(Threshold::number),
                not_for: self.models_not_judged_by(name, reviewer),
                is_person: reviewer.kind == ReviewerType::Human,
                continue_on_error: reviewer.continue_on_error,
            })
            .collect()
    }

    /// The models whose changes a reviewer does not judge. What a panel or one of its members rules out is ruled out for
    /// the panel.
    fn models_not_judged_by(&self, name: &str, reviewer: &Reviewer) -> Vec<String> {
        let asked = self.asked_by(name).filter(|(_, r)| r.other_model_than_coder || reviewer.other_model_than_coder);
        asked.flat_map(|(_, r)| [&r.model, &r.fallback_model]).flatten().cloned().collect()
    }

    /// The reviewers that are asked where this one is: the members of a panel, or itself.
    pub fn asked_by<'c>(&'c self, name: &'c str) -> impl Iterator<Item = (&'c String, &'c Reviewer)> {
        let is_asked = move |one: &String| match self.reviewers.get(name) {
            Some(panel) if panel.kind == ReviewerType::Panel => panel.members.contains(one),
            _ => one == name,
        };
        self.reviewers.iter().filter(move |(one, _)| is_asked(one))
    }

    /// The providers that reviewers call who can be asked, each with the name of one such reviewer: those in turn, and the
    /// members of panels among them.
    pub fn providers_asked(&self) -> IndexMap<&str, &str> {
        let in_turn: Vec<String> = self.reviewers_in_turn().into_iter().map(|r| r.name).collect();
        let mut asked = IndexMap::new();
        for own in self.reviewers.keys().filter(|name| in_turn.contains(name)) {
            for (name, reviewer) in self.asked_by(own).filter(|(_, r)| r.kind == ReviewerType::Llm) {
                if let Some((provider, _)) = reviewer.provider.as_ref().and_then(|p| self.providers.get_key_value(p)) {
                    asked.entry(provider.as_str()).or_insert(name.as_str());
                }
            }
        }
        asked
    }

    /// What is allowed and most likely not meant, each in words that say what to do.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = prices::unheld_budget(self);
        let Some((first, _)) = self.reviewers.first() else { return warnings };
        for (name, reviewer) in &self.reviewers {
            if reviewer.kind == ReviewerType::Panel && reviewer.members.contains(first) {
                let asked = if self.is_always_sure(first) { "never" } else { "only where that one is not sure enough" };
                warnings.push(format!(
                    "reviewers.{name} is a panel behind its member `{first}`, which is the first reviewer of the file and \
                     judges on its own: the panel is asked {asked}; put [reviewers.{name}] first"
                ));
            }
            if reviewer.confidence.is_some() && self.is_always_sure(name) {
                warnings.push(format!(
                    "reviewers.{name}.confidence changes nothing: a reply in the format \"text\" has the confidence 1.0; \
                     set format = \"json\" and let the program print an object with `verdict` and `conf`"
                ));
            }
        }
        warnings
    }

    /// Whether each reply that counts of a reviewer has the confidence 1.0, whatever it says.
    fn is_always_sure(&self, name: &str) -> bool {
        self.asked_by(name).all(|(_, r)| r.kind == ReviewerType::Command && r.format() == Format::Text)
    }

    /// The reviewers whose thresholds follow their own recent confidences, each with the share in percent that does not
    /// pass.
    pub fn quantiles(&self) -> Vec<(&str, u8)> {
        let quantile = |r: &Reviewer| r.confidence.and_then(Threshold::quantile);
        self.reviewers.iter().filter_map(|(name, r)| Some((name.as_str(), quantile(r)?))).collect()
    }
}

/// Holds that what a reviewer is told can be done.
pub(crate) fn validate(config: &Config, name: &str, reviewer: &Reviewer) -> Result<(), String> {
    match reviewer.kind {
        ReviewerType::Command if reviewer.command.is_empty() => {
            return Err(format!("reviewers.{name}.command is empty; name a program"));
        }
        ReviewerType::Llm if reviewer.model.is_none() => {
            return Err(format!("reviewers.{name} needs a `model`"));
        }
        ReviewerType::Llm if reviewer.provider.as_ref().is_none_or(|p| !config.providers.contains_key(p)) => {
            let named = reviewer.provider.as_deref().unwrap_or("NAME");
            let hint = hint(named, config.providers.keys().map(String::as_str));
            return Err(format!(
                "reviewers.{name} needs a `provider` that exists: write a section [providers.{named}]{hint}"
            ));
        }
        _ => {}
    }
    validate_panel(config, name, reviewer)?;
    let key = format!("reviewers.{name}");
    if reviewer.kind == ReviewerType::Llm && reviewer.format == Some(Format::Text) {
        return Err(format!(
            "{key}.format is \"text\", which is for commands; a model replies in \"json\" or \"judge\""
        ));
    }
    if reviewer.other_model_than_coder {
        if let Some((asked, _)) = config.asked_by(name).find(|(_, r)| r.model.is_none()) {
            let who = if asked == name { "it".to_owned() } else { format!("its member `{asked}`") };
            return Err(format!(
                "{key}.other_model_than_coder needs to know with which model {who} works; set it, as in \
                 reviewers.{asked}.model = \"…\""
            ));
        }
        if !config.agents.is_empty() && config.agents.values().all(|a| a.model.is_none()) {
            return Err(format!(
                "{key}.other_model_than_coder needs to know the coder's model; set it, as in agents.NAME.model = \"…\""
            ));
        }
    }
    Ok(())
}

/// Holds that a panel has members that can be asked, each once.
fn validate_panel(config: &Config, name: &str, reviewer: &Reviewer) -> Result<(), String> {
    let key = format!("reviewers.{name}");
    let is_panel = reviewer.kind == ReviewerType::Panel;
    if is_panel && reviewer.members.is_empty() {
        return Err(format!("{key}.members is empty; name the reviewers that are asked"));
    }
    for (at, member) in reviewer.members.iter().enumerate() {
        let kind = config.reviewers.get(member).map(|r| r.kind);
        let why = match kind {
            None => format!(
                "there is no [reviewers.{member}]{}",
                hint(member, config.reviewers.keys().map(String::as_str).filter(|other| *other != name))
            ),
            Some(ReviewerType::Panel) => "that is a panel itself; name its members".to_owned(),
            Some(ReviewerType::Human) => "that is a person; a member is a command or an llm".to_owned(),
            Some(_) if reviewer.members[..at].contains(member) => "it is there twice".to_owned(),
            Some(_) => continue,
        };
        return Err(format!("{key}.members names `{member}`, and {why}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Config;
    use crate::load::tests::{check_error, load_text};

    /// Two commands and a panel of them.
    const PANEL: &str = "[reviewers.both]\ntype = \"panel\"\nmembers = [\"a\", \"b\"]\n\
                         [reviewers.a]\ncommand = [\"x\"]\n[reviewers.b]\ncommand = [\"x\"]\n";

    #[test]
    fn members_of_a_panel_are_not_asked_on_their_own() {
        let names = |text: &str| {
            let (config, _) = load_text(text, &[], &[]).unwrap();
            config.policy().reviewers.into_iter().map(|r| r.name).collect::<Vec<_>>()
        };
        let more = format!("{PANEL}[reviewers.ann]\ntype = \"human\"\n");
        assert_eq!(names(&more), ["both", "ann"]);
        let first = format!("[reviewers.quick]\ncommand = [\"x\"]\n{PANEL}");
        assert_eq!(names(&first), ["quick", "both"]);
        // The first one is the default whatever else it is.
        let member_first = "[reviewers.a]\ncommand = [\"x\"]\n[reviewers.b]\ncommand = [\"x\"]\n\
                            [reviewers.both]\ntype = \"panel\"\nmembers = [\"a\", \"b\"]\n";
        assert_eq!(names(member_first), ["a", "both"]);
    }

    #[test]
    fn panels_that_cannot_be_asked_are_refused() {
        let panel = |members: &str| format!("{PANEL}[reviewers.p]\ntype = \"panel\"\nmembers = {members}\n");
        check_error(&panel("[]"), &["reviewers.p.members is empty"]);
        check_error(&panel("[\"ghost\"]"), &["reviewers.p.members names `ghost`", "no [reviewers.ghost]"]);
        check_error(&panel("[\"a\", \"both\"]"), &["reviewers.p.members names `both`", "a panel itself"]);
        check_error(&panel("[\"a\", \"a\"]"), &["names `a`", "twice"]);
        let person = format!("{}[reviewers.ann]\ntype = \"human\"\n", panel("[\"ann\"]"));
        check_error(&person, &["names `ann`", "a person"]);
        check_error(&panel("[\"bth\"]"), &["names `bth`", "did you mean `both`?"]);
        check_error(&format!("{}rule = \"most\"\n", panel("[\"a\"]")), &["most", "majority"]);
    }

    #[test]
    fn a_threshold_is_a_number_or_a_quantile() {
        let text = |t: &str| format!("{PANEL}[reviewers.c]\ncommand = [\"x\"]\nformat = \"json\"\nconfidence = {t}\n");
        let load = |t: &str| load_text(&text(t), &[], &[]).unwrap().0;
        let of_c = |config: &Config| config.policy().threshold("c");
        assert_eq!((of_c(&load("0.75")), load("0.75").quantiles()), (0.75, vec![]));
        assert_eq!((of_c(&load("\"q20\"")), load("\"q20\"").quantiles()), (0.6, vec![("c", 20)]));
        assert_eq!((of_c(&load("0")), load("0").quantiles()), (0.0, vec![]));
        for bad in ["1.0", "-0.1", "\"q0\"", "\"q100\"", "\"20\"", "\"0.7\""] {
            check_error(&text(bad), &["line", "less than 1", "q20"]);
        }
        let (config, sources) = load_text(&text("\"q20\""), &[], &[]).unwrap();
        let shown = crate::show::lines(&config, &sources);
        let line = shown.iter().find(|l| l.key == "reviewers.c.confidence").unwrap();
        assert_eq!(line.value.as_str(), Some("q20"));
    }

    #[test]
    fn what_is_most_likely_not_meant_is_said() {
        let warnings = |text: &str| load_text(text, &[], &[]).unwrap().0.warnings();
        assert_eq!(warnings(""), [""; 0]);
        assert_eq!(warnings(PANEL), [""; 0]);
        let behind = |of_a: &str| {
            format!("[reviewers.a]\ncommand = [\"x\"]\n{of_a}[reviewers.both]\ntype = \"panel\"\nmembers = [\"a\"]\n")
        };
        let [said] = &warnings(&behind(""))[..] else { panic!() };
        for word in ["reviewers.both", "`a`", "asked never", "put [reviewers.both] first"] {
            assert!(said.contains(word), "{said}");
        }
        let [said] = &warnings(&behind("format = \"json\"\n"))[..] else { panic!() };
        assert!(said.contains("only where that one is not sure enough"), "{said}");
        // A panel behind others than its members is their second opinion.
        assert_eq!(warnings(&format!("[reviewers.quick]\ncommand = [\"x\"]\n{PANEL}")), [""; 0]);

        let [said] = &warnings("[reviewers.a]\ncommand = [\"x\"]\nconfidence = 0.8\n")[..] else { panic!() };
        assert!(said.contains("reviewers.a.confidence changes nothing") && said.contains("`conf`"), "{said}");
        assert_eq!(warnings("[reviewers.a]\ncommand = [\"x\"]\nformat = \"json\"\nconfidence = 0.8\n"), [""; 0]);
        let [said] = &warnings(&PANEL.replacen("members", "confidence = 0.8\nmembers", 1))[..] else { panic!() };
        assert!(said.contains("reviewers.both.confidence"), "{said}");
    }

    #[test]
    fn only_providers_of_reviewers_that_can_be_asked_count() {
        let judge = |name: &str, provider: &str| {
            format!("[reviewers.{name}]\ntype = \"llm\"\nprovider = \"{provider}\"\nmodel = \"m\"\n")
        };
        let text = format!(
            "[reviewers.board]\ntype = \"panel\"\nmembers = [\"a\"]\n{}{}{}",
            judge("a", "p"),
            judge("b", "q"),
            ["p", "q", "unused"].map(|name| format!("[providers.{name}]\nkind = \"openai\"\n")).concat(),
        );
        let (config, _) = load_text(&text, &[], &[]).unwrap();
        let asked: Vec<(&str, &str)> = config.providers_asked().into_iter().collect();
        assert_eq!(asked, [("p", "a"), ("q", "b")]);
    }

    #[test]
    fn a_judge_of_another_model_than_the_coders_needs_to_know_both() {
        let agent = |model: &str| format!("[agents.fixer]\ncommand = [\"x\"]\n{model}");
        let judge = |model: &str| format!("[reviewers.j]\ncommand = [\"x\"]\n{model}other_model_than_coder = true\n");
        let (known, unknown) = (agent("model = \"m-1\"\n"), agent(""));
        check_error(&(known.clone() + &judge("")), &["reviewers.j.other_model_than_coder", "reviewers.j.model = "]);
        let board = format!("{PANEL}other_model_than_coder = false\n")
            .replace("members", "other_model_than_coder = true\nmembers")
            .replacen("command = [\"x\"]", "command = [\"x\"]\nmodel = \"m-2\"", 1);
        check_error(
            &(known.clone() + &board),
            &["reviewers.both.other_model_than_coder", "its member `b`", "reviewers.b.model = "],
        );
        check_error(&(unknown + &judge("model = \"m-1\"\n")), &["agents.NAME.model"]);
        let (config, _) = load_text(&(known.clone() + &judge("model = \"m-1\"\n")), &[], &[]).unwrap();
        assert_eq!(config.policy().next_reviewer("fixer", &[]), ("j", false));
        // A panel does not judge what one of its members must not.
        let panel = "[reviewers.p]\ntype = \"panel\"\nmembers = [\"j\"]\n[reviewers.k]\ncommand = [\"x\"]\n";
        let (config, _) = load_text(&(known + panel + &judge("model = \"m-1\"\n")), &[], &[]).unwrap();
        assert_eq!(config.policy().next_reviewer("fixer", &[]), ("k", true));
    }
}
