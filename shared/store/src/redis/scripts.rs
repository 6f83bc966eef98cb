//! The scripts by name. Each file tells its arguments and its result.

use std::sync::LazyLock;

/// A script with the prelude before it.
pub(super) struct Script {
    /// The operation's name in errors and metrics.
    pub(super) name: &'static str,
    /// The script as the library runs it.
    pub(super) script: LazyLock<redis::Script>,
}

/// Defines a script: its name is that of its file.
macro_rules! script {
    ($constant:ident, $name:literal) => {
        pub(super) static $constant: Script = Script {
            name: $name,
            script: LazyLock::new(|| {
                redis::Script::new(concat!(
                    include_str!("lua/prelude.lua"),
                    include_str!(concat!("lua/", $name, ".lua"))
                ))
            }),
        };
    };
}

script!(CLAIM, "claim");
script!(EXTEND, "extend");
script!(REPORT, "report");
script!(RELEASE, "release");
script!(SUBMIT, "submit");
script!(COMMIT, "commit");
script!(DISCARD, "discard");
script!(PROMOTE, "promote");
script!(RECLAIM, "reclaim");
script!(QUARANTINE, "quarantine");
script!(REPLAY, "replay");
script!(FORGET, "forget");
script!(PERMITS, "permits");
script!(ADMIT, "admit");
script!(HOLD, "hold");
script!(ANSWERED, "answered");
script!(GROW, "grow");
script!(NOW, "now");
script!(STATS, "stats");
script!(PRESENCE, "presence");
script!(CHECK, "check");
