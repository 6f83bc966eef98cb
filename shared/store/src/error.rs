//! What can go wrong in a store, and what to do about it.

use refile_core::TaskId;

/// The cause of an error, as the engine's library gives it.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store's URL is none that this program knows.
    #[error(
        "`{url}` is not a store; write sqlite:PATH, redis://HOST:PORT/DB, rediss://HOST:PORT/DB or redis+cluster://HOST:PORT,HOST:PORT"
    )]
    Url {
        /// The URL, without its password.
        url: String,
    },
    /// The store does not answer. Nothing is lost; try again.
    #[error(
        "the store at {store} does not answer ({operation}); check that it runs, can be reached and has memory left: {source}"
    )]
    Unavailable {
        /// Where it should be, without its password.
        store: String,
        /// What was tried.
        operation: &'static str,
        /// Why.
        source: Cause,
    },
    /// The store answers and must not be used as it is set up.
    #[error("the store at {store} cannot be used: {why}")]
    Unsuitable {
        /// Where it is, without its password.
        store: String,
        /// What is wrong and how to set it right.
        why: String,
    },
    /// The store no longer has what it had.
    #[error(
        "the store at {store} has lost data: {what}; tasks submitted before may be gone: compare `refile task list` with what you submitted"
    )]
    LostData {
        /// Where it is, without its password.
        store: String,
        /// How that shows.
        what: String,
    },
    /// An operation failed for a reason of the engine's own.
    #[error("the store failed at {operation}: {source}")]
    Engine {
        /// What was tried.
        operation: &'static str,
        /// Why.
        source: Cause,
    },
    /// A record cannot be read by this version of the program.
    #[error("the record of task {task} cannot be read: {source}")]
    Undecodable {
        /// Whose.
        task: TaskId,
        /// Why.
        source: crate::envelope::DecodeError,
    },
}

impl StoreError {
    /// Whether the same operation may succeed later without anybody doing anything here.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// A URL as it may be shown: the password is replaced.
pub fn without_password(url: &str) -> String {
    // A URL that lacks its slashes is wrong, and its password is one all the same.
    let Some((scheme, slashes, rest)) = url
        .split_once("://")
        .map(|(scheme, rest)| (scheme, "://", rest))
        .or_else(|| url.split_once(':').map(|(scheme, rest)| (scheme, ":", rest)))
    else {
        return url.to_owned();
    };
    match rest.rsplit_once('@') {
        Some((login, host)) if scheme != "sqlite" => {
            let user = login.split_once(':').map_or("", |(user, _)| user);
            format!("{scheme}{slashes}{user}:***@{host}")
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(without_password("redis://me:s3cret@host:6379/0"), "redis://me:***@host:6379/0");
        assert_eq!(without_password("redis://:p@ss@host/0"), "redis://:***@host/0");
        assert_eq!(without_password("redis://host:6379/0"), "redis://host:6379/0");
        assert_eq!(without_password("sqlite:a.db"), "sqlite:a.db");
        assert_eq!(without_password("sqlite:a@b.db"), "sqlite:a@b.db");
        assert_eq!(without_password("redis:p@host"), "redis::***@host");
    }
}
