//! Where whole logs, transcripts, diffs and replies lie; records hold only their names.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use object_store::buffered::BufWriter;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use refile_core::TaskId;
use tokio::io::{AsyncRead, AsyncWriteExt};

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

    /// Reads the end of an artifact, at most so many bytes, and tells how many lie before it; `None` where there is none of
    /// that name.
    pub async fn get_end(&self, name: &str, most: u64) -> Result<Option<(u64, Bytes)>, ArtifactError> {
        let error = |source| ArtifactError::Store { place: self.place.clone(), source };
        let name = ObjectPath::from(name);
        let size = match self.store.head(&name).await {
            Ok(found) => found.size,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(source) => return Err(error(source)),
        };
        let before = size.saturating_sub(most);
        let end =
            if size == 0 { Bytes::new() } else { self.store.get_range(&name, before..size).await.map_err(error)? };
        Ok(Some((before, end)))
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

    /// The same, of what is read piece by piece and may be larger than memory.
    pub async fn put_from(&self, name: &str, content: impl AsyncRead + Unpin) -> Result<String, ArtifactError> {
        let name = format!("{}/{name}", self.prefix);
        let mut writer = BufWriter::new(self.artifacts.store.clone(), ObjectPath::from(name.as_str()));
        let mut content = content;
        let copied = tokio::io::copy(&mut content, &mut writer).await;
        let written = match copied {
            Ok(_) => writer.shutdown().await,
            Err(error) => {
                // Nothing of it stays; where that fails too, the first error is the one that tells.
                let _ = writer.abort().await;
                Err(error)
            }
        };
        let source = |error: std::io::Error| object_store::Error::Generic { store: "artifacts", source: error.into() };
        written.map_err(|error| ArtifactError::Store { place: self.artifacts.place.clone(), source: source(error) })?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

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

    /// A file on a disk that is no longer there.
    struct Broken;

    impl AsyncRead for Broken {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Err(std::io::Error::other("the disk is gone")))
        }
    }

    #[tokio::test]
    async fn what_is_large_is_put_piece_by_piece_and_its_end_is_read_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::open("file:artifacts", dir.path()).unwrap();
        let shelf = artifacts.shelf(&TaskId::parse("t1").unwrap(), "change", 1, 7);
        let large = "0123456789".repeat(3 << 20);
        let name = shelf.put_from("gate.log", large.as_bytes()).await.unwrap();
        assert_eq!(artifacts.get(&name).await.unwrap().unwrap(), large);
        let end = artifacts.get_end(&name, 15).await.unwrap().unwrap();
        assert_eq!(end, (large.len() as u64 - 15, Bytes::from("567890123456789")));
        // What is short is read whole, also where it is nothing.
        for text in ["", "x"] {
            let name = shelf.put_from("short.log", text.as_bytes()).await.unwrap();
            assert_eq!(artifacts.get_end(&name, 15).await.unwrap().unwrap(), (0, Bytes::from(text)));
        }
        assert_eq!(artifacts.get_end("t1/other", 15).await.unwrap(), None);
        // What could not be read to its end leaves nothing.
        let broken = tokio::io::AsyncReadExt::chain(large.as_bytes(), Broken);
        let error = shelf.put_from("broken.log", broken).await.unwrap_err().to_string();
        assert!(error.contains("the disk is gone"), "{error}");
        assert_eq!(artifacts.get("t1/change/1-7/broken.log").await.unwrap(), None);
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
