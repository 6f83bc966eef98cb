//! Disks that are full, or nearly.

use std::time::Duration;

use super::common::command::{Desk, ended};
use super::common::until;
use super::{Done, confined, desk};

/// `refile up --drain`, with a small disk under the worker's folder.
fn up_on_a_small_disk(place: &Desk, task: String) -> Done {
    std::fs::create_dir_all(place.path(".refile/work")).unwrap();
    let inside = place.command(&["up", "--drain"]);
    let up = std::process::Command::new("bwrap")
        .args(["--dev-bind", "/", "/", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "CAP_SYS_ADMIN"])
        .args(["sh", "-c", "mount -t tmpfs -o size=64m tmpfs .refile/work && exec \"$@\"", "sh"])
        .arg(inside.get_program())
        .args(inside.get_args())
        .current_dir(place.dir.path())
        .env_clear()
        .envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output()
        .unwrap();
    Done { shown: place.json(&["task", "show", &task]), task, up: ended(up) }
}

/// One whose first failed run is its last, and with so much to be left free on its disk.
fn once(agent: &str, min_free: u64, more: &str) -> Desk {
    let bound = format!("{more}[workspace]\nmin_free_bytes = {min_free}\n");
    let place = desk(agent, "echo APPROVE", "sandbox = \"off\"\n[repository]\nurl = \"repo\"", &bound);
    let config = std::fs::read_to_string(place.path("refile.toml")).unwrap();
    place.write("refile.toml", &config.replace("max_infra_failures = 2", "max_infra_failures = 1"));
    place
}

#[test]
fn a_gate_that_runs_into_a_full_disk_is_no_fault_of_the_change() {
    let gate = "[[gates]]\nname = \"test\"\nrun = \"head -c 200000000 /dev/zero > fill\"\n";
    let place = once("echo x > new.txt", 0, gate);
    let done = up_on_a_small_disk(&place, place.submit("Write new.txt"));
    let says = ["the gate `test` ran out of disk space", "No space left on device", "make room", "workers.dir"];
    done.escalated(&place, 1, "coder_unavailable", &says);
}

#[test]
fn an_agent_or_a_gate_that_fills_the_disk_is_stopped_before_the_disk_is_full() {
    const MIN_FREE: u64 = 40 << 20;
    let fill = "head -c 50000000 /dev/zero > fill.tmp; sleep 20";
    let place = once(fill, MIN_FREE, "");
    let done = up_on_a_small_disk(&place, place.submit("Write new.txt"));
    let says = ["was stopped since the disk was nearly full", "make room", "workers.dir"];
    done.escalated(&place, 1, "coder_unavailable", &says);
    let gate = format!("[[gates]]\nname = \"test\"\nrun = \"{fill}\"\n");
    let place = once("echo x > new.txt", MIN_FREE, &gate);
    let done = up_on_a_small_disk(&place, place.submit("Write new.txt"));
    let of_gate = format!("the gate `test` {}", says[0]);
    done.escalated(&place, 1, "coder_unavailable", &[&of_gate, says[1]]);
}

#[test]
fn no_job_begins_where_the_disk_is_nearly_full() {
    // The sandbox is tried all the same.
    let bound = format!("[workspace]\nmin_free_bytes = {}\n", 1_u64 << 60);
    let place = confined("echo x > new.txt", &bound);
    let task = place.submit("Write new.txt");
    let log = place.path("log");
    let mut up = place.command(&["up"]).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let said = until("it says why nothing begins", Duration::from_secs(20), || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("no job is begun").then_some(said)
    });
    assert!(said.contains("bytes are free on the disk of") && said.contains("workspace.min_free_bytes"), "{said}");
    // Told to go on until nothing is left, it does not wait for ever.
    place.run(&["up", "--drain"]).must(1, &["workspace.min_free_bytes", "nothing runs that could make room"]);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(up.id() as i32), nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(up.wait().unwrap().success());
    let shown = place.json(&["task", "show", &task]);
    let job = &shown["jobs"][0];
    assert_eq!(
        (&shown["state"], &job["place"], &job["deliveries"]),
        (&"open".into(), &"queued".into(), &0.into()),
        "{shown}"
    );
}
