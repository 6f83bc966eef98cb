//! Cargo in the sandbox: what the machine has is used, what is new is put beside it, and nobody writes the machine's.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::Place;
use common::fleet::{Try, gate, task};

/// Set where a test runs again with a home of its own.
const AGAIN: &str = "MY_TEST_HOME";
/// A registry's folder.
const INDEX: &str = "index.crates.io-1949cf8c6b5b557f";

/// Runs a test of this file again, by itself and with another home, which the folder's `home` is; gives it in that run.
fn home(test: &str, fill: impl Fn(&Path)) -> Option<PathBuf> {
    if let Some(home) = std::env::var_os(AGAIN) {
        return Some(home.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().canonicalize().unwrap();
    fill(&home);
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(AGAIN, &home)
        .env("HOME", &home)
        .env_remove("CARGO_HOME")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
    None
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// All files below a folder, with what they hold.
fn all(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(all(&entry.path()));
        } else {
            found.push((entry.path(), std::fs::read_to_string(entry.path()).unwrap()));
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn what_the_machine_has_is_used_and_what_is_new_lies_beside_it() {
    let fill = |home: &Path| {
        for (file, text) in [
            (&*format!("registry/cache/{INDEX}/known-1.0.0.crate"), "known, packed"),
            (&format!("registry/cache/{INDEX}/other-1.0.0.crate"), "other, packed"),
            (&format!("registry/src/{INDEX}/known-1.0.0/.cargo-ok"), "{\"v\":1}"),
            (&format!("registry/src/{INDEX}/known-1.0.0/lib.rs"), "known"),
            (&format!("registry/src/{INDEX}/half-1.0.0/lib.rs"), "half"),
            (&format!("registry/index/{INDEX}/config.json"), "{}"),
            (&format!("registry/index/{INDEX}/.cache/kn/ow/known"), "entry"),
            ("git/db/repo-1/HEAD", "head"),
            ("git/checkouts/repo-1/abc/lib.rs", "from git"),
        ] {
            write(&home.join(".cargo").join(file), text);
        }
    };
    let Some(home) = home("what_the_machine_has_is_used_and_what_is_new_lies_beside_it", fill) else { return };
    let before = all(&home);
    let place = Place::guarded("").await;
    let package =
        |name: &str| format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\nsource = \"registry+x\"\n");
    place.commit(&[("Cargo.toml", "[package]\n"), ("Cargo.lock", &(package("known") + &package("half")))]);
    let script = format!(
        "cd \"$HOME/.cargo\" || exit 1\n\
         cache=registry/cache/{INDEX}; src=registry/src/{INDEX}; index=registry/index/{INDEX}\n\
         is() {{ [ \"$(cat \"$1\")\" = \"$2\" ] || {{ echo \"$1: $(cat \"$1\")\"; exit 1; }}; }}\n\
         is $cache/known-1.0.0.crate 'known, packed'; is $src/known-1.0.0/lib.rs known; is $index/config.json {{}}\n\
         is $index/.cache/kn/ow/known entry; is git/db/repo-1/HEAD head; is git/checkouts/repo-1/abc/lib.rs 'from git'\n\
         [ ! -e $src/half-1.0.0 ] && [ ! -e $cache/other-1.0.0.crate ] || {{ ls $src $cache; exit 1; }}\n\
         for new in $cache/new.crate $src/new/lib.rs $index/.cache/ne/ww/neww git/db/repo-2/HEAD git/checkouts/repo-1/def/lib.rs; do\n\
             mkdir -p $(dirname $new) && echo new > $new || exit 1; done\n\
         echo newer > $index/.cache/kn/ow/known; is $index/.cache/kn/ow/known newer\n\
         for old in $cache/known-1.0.0.crate $src/known-1.0.0/lib.rs $src/known-1.0.0/evil.rs git/db/repo-1/HEAD \
             git/checkouts/repo-1/abc/evil.rs /run/refile/cargo/registry/evil /run/refile/cargo/git/evil; do\n\
             if (echo evil > $old) 2> /dev/null; then echo \"writes $old\"; exit 1; fi; done\n\
         rm $cache/known-1.0.0.crate $src/known-1.0.0; echo evil > $cache/known-1.0.0.crate\n\
         rm -rf git; mkdir -p git/db registry/.evil; ln -s / registry/evil; cd - > /dev/null; rm -f Cargo.lock; mkfifo Cargo.lock; \
         rm Cargo.lock; echo x > new.txt"
    );
    let mut attempt = Try::script(&script);
    // Gates have caches of their own, which they share: what an agent put into its own is not there.
    let own = format!("cd \"$HOME/.cargo/registry/cache/{INDEX}\"");
    attempt.gates = vec![
        gate(
            "fetch",
            &format!("{own} && grep 'known, packed' known-1.0.0.crate && test ! -e new.crate && echo x > next.crate"),
        ),
        gate("test", &format!("{own} && cat next.crate")),
    ];
    attempt.change(&place, &task(&place, "t1")).await;
    assert_eq!(all(&home), before, "the machine's are as they were");
    // An agent without network, and one whose project is none of Cargo's, see the machine's as they are.
    let sees = format!("cat \"$HOME/.cargo/registry/cache/{INDEX}/other-1.0.0.crate\" && echo x > new.txt");
    let mut closed = Try::script(&sees);
    (closed.attempt, closed.agent.network) = (2, Some(false));
    closed.change(&place, &task(&place, "t1")).await;
    place.commit(&[("Cargo.toml", ""), ("Cargo.lock", "")]);
    let mut other = Try::script(&format!("{sees} && ! echo evil > \"$HOME/.cargo/registry/evil\""));
    other.attempt = 3;
    other.change(&place, &task(&place, "t1")).await;
    assert_eq!(all(&home), before);
}

/// A crate that this workspace needs, so that this machine has it.
const CRATE: &str = "itoa";

#[tokio::test]
async fn cargo_builds_without_network_from_what_the_machine_has() {
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cargo"), PathBuf::from);
    let fill = |home: &Path| {
        let copy = |kind: &str, below: &str, file: &dyn Fn(&str) -> bool| {
            for registry in std::fs::read_dir(cargo_home.join("registry").join(kind)).unwrap().flatten() {
                let to = home.join(".cargo/registry").join(kind).join(registry.file_name()).join(below);
                for entry in std::fs::read_dir(registry.path().join(below)).into_iter().flatten().flatten() {
                    if file(entry.file_name().to_str().unwrap()) && entry.path().is_file() {
                        std::fs::create_dir_all(&to).unwrap();
                        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
                    }
                }
            }
        };
        copy("cache", "", &|name| name.starts_with("itoa-"));
        copy("index", "", &|name| name == "config.json");
        copy("index", ".cache/it/oa", &|name| name == CRATE);
    };
    let Some(home) = home("cargo_builds_without_network_from_what_the_machine_has", fill) else { return };
    let lock = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock")).unwrap();
    let package = lock.split("[[package]]").find(|package| package.contains("\nname = \"itoa\"\n")).unwrap();
    let version = package.lines().find_map(|line| line.strip_prefix("version = ")).unwrap().trim_matches('"');
    // The real programs: those of a home are links to a tool that looks for them in it.
    let cargo = PathBuf::from(std::env::var_os("CARGO").unwrap());
    let toolchain = cargo.parent().and_then(Path::parent).unwrap();
    let place = Place::guarded(&format!("readable = [\"{}\"]\n", toolchain.display())).await;
    place.commit(&[
        (
            "Cargo.toml",
            &format!("[package]\nname = \"scratch\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nitoa = \"={version}\"\n"),
        ),
        (
            "Cargo.lock",
            &format!("version = 4\n\n[[package]]{package}[[package]]\nname = \"scratch\"\nversion = \"0.1.0\"\ndependencies = [\n \"itoa\",\n]\n"),
        ),
        ("lib.rs", "pub fn said() -> String { itoa::Buffer::new().format(1).to_owned() }\n"),
        (".gitignore", "target/\n"),
    ]);
    let build = format!(
        "export PATH={}/bin:$PATH; printf '[lib]\\npath = \"lib.rs\"\\n' >> Cargo.toml; cargo build --locked",
        toolchain.display()
    );
    let mut attempt = Try::script("echo x > new.txt");
    attempt.gates = vec![gate("build", &format!("{build} && test -d \"$HOME\"/.cargo/registry/src/*/itoa-{version}"))];
    attempt.change(&place, &task(&place, "t1")).await;
    assert!(!home.join(".cargo/registry/src").exists(), "it was unpacked beside the machine's");
}
