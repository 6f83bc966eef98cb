//! Whose word a webhook is: the signature over its body, compared without telling how much of it was right.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use refile_config::ForgeKind;
use ring::hmac;

/// Whether a webhook was signed with the secret. `header` gives a header by its name in small letters.
///
/// GitHub: `x-hub-signature-256`, HMAC-SHA256 in hex. Gitea and Forgejo: the same, or `x-gitea-signature`. GitLab:
/// `webhook-signature` (Standard Webhooks) where it has a signing token, else the secret itself in `x-gitlab-token`.
pub fn is_signed<'h>(kind: ForgeKind, secret: &str, header: impl Fn(&str) -> Option<&'h str>, body: &[u8]) -> bool {
    if secret.is_empty() {
        return false;
    }
    let in_hex = |given: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        unhex(given).is_some_and(|tag| hmac::verify(&key, body, &tag).is_ok())
    };
    let prefixed = || header("x-hub-signature-256").and_then(|given| given.strip_prefix("sha256="));
    match kind {
        ForgeKind::Github => prefixed().is_some_and(in_hex),
        ForgeKind::Gitea => header("x-gitea-signature").or_else(prefixed).is_some_and(in_hex),
        ForgeKind::Gitlab => match (header("webhook-signature"), header("webhook-id"), header("webhook-timestamp")) {
            (Some(given), Some(id), Some(at)) => standard(secret, given, id, at, body),
            (None, ..) => header("x-gitlab-token").is_some_and(|given| is_same(secret, given)),
            _ => false,
        },
    }
}

/// Standard Webhooks: `v1,<base64>` over id, time and body; several are separated by spaces.
fn standard(secret: &str, given: &str, id: &str, at: &str, body: &[u8]) -> bool {
    let key = secret.strip_prefix("whsec_").and_then(|text| BASE64_STANDARD.decode(text).ok());
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_deref().unwrap_or(secret.as_bytes()));
    let signed = [id.as_bytes(), b".", at.as_bytes(), b".", body].concat();
    let tags = given.split(' ').filter_map(|one| BASE64_STANDARD.decode(one.strip_prefix("v1,")?).ok());
    tags.into_iter().any(|tag| hmac::verify(&key, &signed, &tag).is_ok())
}

/// Whether two secrets are the same, in a time that says nothing of where they differ.
fn is_same(secret: &str, given: &str) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"refile");
    hmac::verify(&key, given.as_bytes(), hmac::sign(&key, secret.as_bytes()).as_ref()).is_ok()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"Hello, World!";
    /// The example of GitHub's documentation, for the secret and body that it names.
    const SECRET: &str = "It's a Secret to Everybody";
    const HEX: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    #[track_caller]
    fn check(kind: ForgeKind, secret: &str, headers: &[(&str, &str)], body: &[u8], expect: bool) {
        let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        assert_eq!(is_signed(kind, secret, header, body), expect, "{headers:?}");
    }

    #[test]
    fn github_signs_with_a_prefix() {
        let given = format!("sha256={HEX}");
        let header = [("x-hub-signature-256", given.as_str())];
        check(ForgeKind::Github, SECRET, &header, BODY, true);
        check(ForgeKind::Github, SECRET, &header, b"Hello, World?", false);
        check(ForgeKind::Github, "another", &header, BODY, false);
        check(ForgeKind::Github, "", &header, BODY, false);
        check(ForgeKind::Github, SECRET, &[], BODY, false);
        for bad in [HEX, "sha256=", "sha256=7", "sha256=zz", "sha1=757107ea"] {
            check(ForgeKind::Github, SECRET, &[("x-hub-signature-256", bad)], BODY, false);
        }
        check(ForgeKind::Github, SECRET, &[("x-gitlab-token", SECRET)], BODY, false);
    }

    #[test]
    fn gitea_signs_without() {
        check(ForgeKind::Gitea, SECRET, &[("x-gitea-signature", HEX)], BODY, true);
        check(ForgeKind::Gitea, SECRET, &[("x-gitea-signature", &HEX[..62])], BODY, false);
        check(ForgeKind::Gitea, SECRET, &[], BODY, false);
    }

    #[test]
    fn gitlab_sends_the_secret_or_signs() {
        check(ForgeKind::Gitlab, SECRET, &[("x-gitlab-token", SECRET)], BODY, true);
        check(ForgeKind::Gitlab, SECRET, &[("x-gitlab-token", "It's")], BODY, false);
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef0123456789abcdef");
        let secret = format!("whsec_{}", BASE64_STANDARD.encode(b"0123456789abcdef0123456789abcdef"));
        let tag = hmac::sign(&key, [b"msg_1.1700000000.", BODY].concat().as_slice());
        let given = format!("v1,AAAA v1,{}", BASE64_STANDARD.encode(tag.as_ref()));
        let headers =
            |id| [("webhook-signature", given.as_str()), ("webhook-id", id), ("webhook-timestamp", "1700000000")];
        check(ForgeKind::Gitlab, &secret, &headers("msg_1"), BODY, true);
        check(ForgeKind::Gitlab, &secret, &headers("msg_2"), BODY, false);
        // A signature that is there and wrong is not made up for by anything else.
        let mixed = [("webhook-signature", "v1,AAAA"), ("x-gitlab-token", secret.as_str())];
        check(ForgeKind::Gitlab, &secret, &mixed, BODY, false);
    }
}
