//! One suite for every engine of the store. An engine is one line at the end of this file.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[macro_use]
#[path = "suite/list.rs"]
mod list;
mod suite;

/// Runs every function of the suite against a harness.
macro_rules! engine {
    ($engine:ident: $module:ident::$harness:ident in $file:literal) => {
        #[path = $file]
        mod $module;

        mod $engine {
            use crate::$module::$harness as Harness;

            conformance!(test_each!);
        }
    };
}

/// A test for each function, with a store of its own.
macro_rules! test_each {
    ($($part:ident: $($test:ident),+;)+) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::suite::$part::$test(&Harness::start()).await;
            }
        )+)+
    };
}

engine!(sqlite: sqlite_file::SqliteHarness in "suite/sqlite_file.rs");
engine!(redis: redis_server::RedisHarness in "suite/redis_server.rs");
