//! Where whole logs, transcripts, diffs and replies lie; records hold only their names.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use refile_core::TaskId;

/// Why an artifact could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The URL is none that this program knows.
    #[error("`{0}` is no place for artifacts; write file:PATH")]
    Url(String),
    /// The place cannot be used.
    #[error("the artifact store at {place} failed: {source}; check that the folder exists and can be written")]
    Store {
        /// Where it is.
        place: String,
        /// Why.
        source: object_store::Error,
    },
    /// The folder cannot be made.
    #[error("cannot make the folder {place} for artifacts: {source}")]
    Folder {
        /// Where it should be.
        place: String,
        /// Why.
        source: std::io::Error,
    },
}

/// The artifact store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Artifacts {
    store: Arc<dyn ObjectStore>,
    place: String,
}

/// The place of one claim's artifacts: no two claims of a job share it.
#[derive(Debug, Clone)]
pub struct Shelf {
    artifacts: Artifacts,
    prefix: String,
}

impl Artifacts {
    /// Opens the store of a URL. `dir` is where relative paths start. The folder is made where it is missing.
    pub fn open(url: &str, dir: &Path) -> Result<Self, ArtifactError> {
        let path =
            url.strip_prefix("file:").filter(|p| !p.is_empty()).ok_or_else(|| ArtifactError::Url(url.to_owned()))?;
        let folder = dir.join(path);
        let place = folder.display().to_string();
        let folder_error = |source| ArtifactError::Folder { place: place.clone(), source };
        crate::folder::make(&folder).map_err(folder_error)?;
        let folder = folder.canonicalize().map_err(folder_error)?;
        let store = LocalFileSystem::new_with_prefix(folder)
            .map_err(|source| ArtifactError::Store { place: place.clone(), source })?;
        Ok(Self { store: Arc::new(store), place })
    }

    /// The place of one claim's artifacts.
    pub fn shelf(&self, task: &TaskId, phase: &str, attempt: u32, fence: u64) -> Shelf {
        Shelf { artifacts: self.clone(), prefix: format!("{task}/{phase}/{attempt}-{fence}") }
    }

    /// Reads an artifact; `None` where there is none of that name.
    pub async fn get(&self, name: &str) -> Result<Option<Bytes>, ArtifactError> {
        let error = |source| ArtifactError::Store { place: self.place.clone(), source };
        match self.store.get(&ObjectPath::from(name)).await {
            Ok(found) => found.bytes().await.map(Some).map_err(error),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(error(source)),
        }
    }

    /// The artifacts of a name that the claims of an attempt left, with the fence of each, oldest first.
    pub async fn of_attempt(
        &self,
        task: &TaskId,
        phase: &str,
        attempt: u32,
        name: &str,
    ) -> Result<Vec<(u64, String)>, ArtifactError> {
        let error = |source| ArtifactError::Store { place: self.place.clone(), source };
        let shelves = self.store.list_with_delimiter(Some(&ObjectPath::from(format!("{task}/{phase}")))).await;
        let fence = |shelf: &ObjectPath| {
            let (of, fence) = shelf.filename()?.split_once('-')?;
            (of == attempt.to_string()).then(|| fence.parse().ok())?
        };
        let mut fences: Vec<u64> = shelves.map_err(error)?.common_prefixes.iter().filter_map(fence).collect();
        fences.sort_unstable();
        let mut found = Vec::new();
        for fence in fences {
            let name = format!("{}/{name}", self.shelf(task, phase, attempt, fence).prefix);
            match self.store.head(&ObjectPath::from(name.as_str())).await {
                Ok(_) => found.push((fence, name)),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(source) => return Err(error(source)),
            }
        }
        Ok(found)
    }
}

impl Shelf {
    /// Writes an artifact and gives the name that a record keeps.
    pub async fn put(&self, name: &str, content: impl Into<Bytes>) -> Result<String, ArtifactError> {
        let name = format!("{}/{name}", self.prefix);
        let content: Bytes = content.into();
        self.artifacts
            .store
            .put(&ObjectPath::from(name.as_str()), content.into())
            .await
            .map_err(|source| ArtifactError::Store { place: self.artifacts.place.clone(), source })?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_put_is_got() {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::open("file:artifacts", dir.path()).unwrap();
        let shelf = artifacts.shelf(&TaskId::parse("t1").unwrap(), "change", 1, 7);
        let name = shelf.put("test.log", "all good").await.unwrap();
        assert_eq!(name, "t1/change/1-7/test.log");
        assert_eq!(artifacts.get(&name).await.unwrap().unwrap(), "all good");
        assert_eq!(artifacts.get("t1/other").await.unwrap(), None);
        assert!(matches!(Artifacts::open("ftp:x", dir.path()), Err(ArtifactError::Url(_))));
    }

    #[tokio::test]
    async fn what_the_claims_of_an_attempt_left_is_found_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::open("file:artifacts", dir.path()).unwrap();
        let task = TaskId::parse("t1").unwrap();
        let found = async |attempt| artifacts.of_attempt(&task, "a/b", attempt, "x.log").await.unwrap();
        assert_eq!(found(1).await, []);
        for (attempt, fence, name) in [(1, 10, "x.log"), (1, 9, "x.log"), (1, 8, "y.log"), (11, 7, "x.log")] {
            artifacts.shelf(&task, "a/b", attempt, fence).put(name, "one").await.unwrap();
        }
        let expected = [9, 10].map(|fence| (fence, format!("t1/a/b/1-{fence}/x.log")));
        assert_eq!(found(1).await, expected);
        artifacts.shelf(&task, "a/b", 1, 9).put("x.log", "two").await.unwrap();
        assert_eq!(artifacts.get(&expected[0].1).await.unwrap().unwrap(), "two");
    }
}
