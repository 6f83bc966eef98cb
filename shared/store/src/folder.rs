//! Folders that the fleet keeps beside a repository.

use std::path::Path;

/// The folder that the fleet keeps in a repository by default.
const OWN: &str = ".refile";

/// Makes a folder. One that lies in a `.refile` which is new keeps all of that out of the repository around it.
pub fn make(folder: &Path) -> std::io::Result<()> {
    if folder.as_os_str().is_empty() {
        return Ok(());
    }
    let new = folder.ancestors().find(|f| f.file_name().is_some_and(|name| name == OWN)).filter(|own| !own.exists());
    std::fs::create_dir_all(folder)?;
    match new {
        Some(own) => std::fs::write(own.join(".gitignore"), "*\n"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_fleet_keeps_stays_out_of_the_repository() {
        let dir = tempfile::tempdir().unwrap();
        make(&dir.path().join(".refile/work/trees")).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join(".refile/.gitignore")).unwrap(), "*\n");
        make(&dir.path().join("elsewhere/deep")).unwrap();
        assert!(!dir.path().join("elsewhere/.gitignore").exists());
        make(Path::new("")).unwrap();
    }
}
