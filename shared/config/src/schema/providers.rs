//! Providers of models: `[providers.NAME]`.

use serde::{Deserialize, Serialize};

/// The wire formats of providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    /// Anthropic Messages.
    Anthropic,
    /// `OpenAI` chat completions, and everything that speaks them.
    Openai,
    /// `OpenAI` responses.
    OpenaiResponses,
    /// Google's `generateContent`.
    Gemini,
    /// Chat completions as Ollama speaks them.
    Ollama,
}

impl ProviderKind {
    /// Every kind, for tables and tests.
    pub const ALL: [Self; 5] = [Self::Anthropic, Self::Openai, Self::OpenaiResponses, Self::Gemini, Self::Ollama];
}

/// A provider of models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// Its wire format.
    pub kind: ProviderKind,
    /// Where it is; the provider's own address by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The environment variable that holds the key; none for a server that asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Whether its models can be held to a JSON schema; by default where the server is known to be able to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<bool>,
    /// How many calls the whole fleet may make in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// How many tokens the whole fleet may use up in a minute, by an estimate: a quarter of the bytes that are sent, and
    /// the longest answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u32>,
}

impl Provider {
    /// Where it is.
    pub fn base_url(&self) -> &str {
        self.base_url.as_deref().unwrap_or(match self.kind {
            ProviderKind::Anthropic => "https://api.anthropic.com/",
            ProviderKind::Openai | ProviderKind::OpenaiResponses => "https://api.openai.com/",
            ProviderKind::Gemini => "https://generativelanguage.googleapis.com/",
            ProviderKind::Ollama => "http://127.0.0.1:11434/",
        })
    }

    /// Whether its models can be held to a JSON schema. Many a server that speaks chat completions or Messages at an
    /// address of its own refuses a field that it does not know; such a one is asked for plain JSON unless told so.
    pub fn structured(&self) -> bool {
        let copied = matches!(self.kind, ProviderKind::Anthropic | ProviderKind::Openai);
        self.structured.unwrap_or(self.base_url.is_none() || !copied)
    }
}
