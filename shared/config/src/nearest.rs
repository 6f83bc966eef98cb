//! The known name that somebody may have meant.

/// The name that is nearest to a given one, where one is near enough to be meant.
pub fn nearest<'n>(given: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(given, name), name))
        .filter(|(similarity, _)| *similarity > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
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
        assert_eq!(hint("fixr", ["fixer"]), "; did you mean `fixer`?");
        assert_eq!(hint("zzz", ["a", "b"]), "; there is: a, b");
        assert_eq!(hint("zzz", []), "");
    }
}
