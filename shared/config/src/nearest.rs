//! The known name that somebody may have meant.

/// The name that is nearest to a given one, where one is near enough to be meant.
pub fn nearest<'n>(given: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    known
        .into_iter()
        .map(|name| (is_slip(given, name), strsim::jaro_winkler(given, name), name))
        .filter(|(is_slip, similarity, _)| *is_slip || *similarity > 0.7)
        .max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
        .map(|(.., name)| name)
}

/// Whether one letter is missing, wrong or too many, or two are swapped: in short words that is much of them.
fn is_slip(given: &str, name: &str) -> bool {
    name.len() > 2 && given.len() > 1 && strsim::damerau_levenshtein(given, name) <= 1
}

/// The same as the end of an error: what was meant, or what there is.
pub(crate) fn hint<'n>(given: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(given, known.iter().copied()) {
        Some(name) => format!("; did you mean `{name}`?"),
        None if known.is_empty() => String::new(),
        None => format!("; there is: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_near() {
        assert_eq!(nearest("anthopic", ["openai", "anthropic"]), Some("anthropic"));
        assert_eq!(nearest("zzz", ["openai", "anthropic"]), None);
        let kinds = ["command", "llm", "acp"];
        let meant = ["lm", "lln", "apc", "comand", "x", "mcp"].map(|given| nearest(given, kinds));
        assert_eq!(meant, [Some("llm"), Some("llm"), Some("acp"), Some("command"), None, Some("acp")]);
        assert_eq!(hint("fixr", ["fixer"]), "; did you mean `fixer`?");
        assert_eq!(hint("zzz", ["a", "b"]), "; there is: a, b");
        assert_eq!(hint("zzz", []), "");
    }
}
