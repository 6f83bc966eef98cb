//! Dependencies between the members of the workspace point one way, and each outside world has one crate that knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// For each member: the members that it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("shared/core", &[]),
    ("shared/config", &["core"]),
    ("shared/telemetry", &["core"]),
    ("shared/store", &["core"]),
    ("shared/forge", &["core", "config"]),
    ("coordinator", &["core", "config", "telemetry", "store", "forge"]),
    ("worker", &["core", "config", "telemetry", "store", "forge"]),
    ("cli", &["core", "config", "telemetry", "store", "coordinator", "worker"]),
];

/// Who alone may know a crate.
const OWNED: &[(&str, &[&str])] = &[
    ("redis", &["shared/store"]),
    ("rusqlite", &["shared/store"]),
    ("object_store", &["shared/store"]),
    ("rmp-serde", &["shared/store"]),
    // Models, and forges.
    ("reqwest", &["worker", "shared/forge"]),
];

/// The names below `[dependencies]` and `[build-dependencies]`; what tests alone use is left out.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut counts = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            let section = line.trim_matches(['[', ']']);
            counts = section.ends_with("dependencies") && !section.ends_with("dev-dependencies");
            continue;
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if counts && !name.is_empty() && !name.starts_with('#') {
            names.insert(name.to_owned());
        }
    }
    names
}

/// What is wrong with the members' dependencies.
fn faults(members: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut faults = Vec::new();
    for (member, has) in members {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| name == member) else {
            faults.push(format!("{member} is a member that this test does not know"));
            continue;
        };
        let ours = has.iter().filter_map(|name| name.strip_prefix("refile-"));
        faults.extend(ours.filter(|n| !allowed.contains(n)).map(|n| format!("{member} must not know refile-{n}")));
        for (name, owners) in OWNED.iter().filter(|(name, owners)| !owners.contains(&&**member) && has.contains(*name))
        {
            faults.push(format!("{member} must not know {name}: only {} does", owners.join(", ")));
        }
    }
    faults
}

fn members() -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| {
        let file = root.join(name).join("Cargo.toml");
        std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    };
    let manifest = read("");
    let list = manifest.lines().find_map(|l| l.strip_prefix("members = [")).unwrap_or_default();
    let names = list.trim_end_matches(']').split(',').map(|m| m.trim().trim_matches('"').to_owned());
    names.map(|name| (name.clone(), dependencies(&read(&name)))).collect()
}

#[test]
fn dependencies_point_one_way() {
    let members = members();
    assert_eq!(members.len(), ALLOWED.len(), "{:?}", members.keys());
    let faults = faults(&members);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_check_finds_what_points_the_wrong_way() {
    let member = |manifest: &str| dependencies(manifest);
    let found = |name: &str, manifest: &str| faults(&BTreeMap::from([(name.to_owned(), member(manifest))])).len();
    assert_eq!(found("shared/core", "[dependencies]\nrefile-store.workspace = true\n"), 1);
    assert_eq!(found("coordinator", "[dependencies]\nrefile-worker = { path = \"../worker\" }\n"), 1);
    assert_eq!(found("worker", "[dependencies]\nredis = \"1\"\nrusqlite.workspace = true\n"), 2);
    assert_eq!(found("cli", "[target.'cfg(unix)'.dependencies]\nreqwest.workspace = true\n"), 1);
    assert_eq!(
        found("cli", "[dependencies]\nrefile-worker.workspace = true\n[dev-dependencies]\nreqwest = \"1\"\n"),
        0
    );
    assert_eq!(found("elsewhere", "[dependencies]\n"), 1);
}
