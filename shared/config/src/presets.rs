//! The coding agents that are known by name.

use serde::{Deserialize, Serialize};

/// A coding agent whose command, output and failures are known; the worker holds the data of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// Gemini CLI.
    Gemini,
    /// aider.
    Aider,
    /// `OpenCode`.
    Opencode,
    /// mini-SWE-agent.
    MiniSweAgent,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Claude, Self::Codex, Self::Gemini, Self::Aider, Self::Opencode, Self::MiniSweAgent];

    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Aider => "aider",
            Self::Opencode => "opencode",
            Self::MiniSweAgent => "mini-swe-agent",
        }
    }

    /// Whether it prints what a run cost; all of them print tokens.
    pub fn prints_cost(self) -> bool {
        !matches!(self, Self::Codex | Self::Gemini)
    }
}

#[cfg(test)]
mod tests {
    use super::Preset;
    use crate::load::tests::{check_error, load_text};

    #[test]
    fn a_preset_stands_for_a_command() {
        for preset in Preset::ALL {
            let text = format!("[agents.a]\npreset = \"{}\"\nmodel = \"m\"\nargs = [\"--x\"]\n", preset.as_str());
            let (config, _) = load_text(&text, &[], &[]).unwrap();
            let agent = &config.agents["a"];
            assert_eq!((agent.preset, agent.command.len(), agent.args.len()), (Some(preset), 0, 1));
        }
        check_error("[agents.a]\npreset = \"cladue\"\n", &["cladue", "did you mean `claude`?"]);
        check_error("[agents.a]\n", &["agents.a.command is empty", "preset"]);
        check_error("[agents.a]\npreset = \"claude\"\nprompt = \"file\"\n", &["agents.a.prompt", "command"]);
    }
}
