//! Listings, page by page and no further than there is any sense in.

use refile_config::ForgeKind;
use reqwest::Method;
use serde::de::DeserializeOwned;

use super::Http;
use crate::ForgeError;

/// The most pages of one listing.
const MAX_PAGES: u32 = 10;
/// Entries on a page; Gitea gives no more than 50.
const PAGE: usize = 50;

impl Http {
    /// Reads a listing, page by page and no further than there is any sense in.
    pub(crate) async fn pages<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ForgeError> {
        self.listing(path, false).await
    }

    /// The same of what is listed oldest first: where it is too long, what is in the middle is left out, and not the news at
    /// its end.
    pub(crate) async fn history<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ForgeError> {
        self.listing(path, true).await
    }

    async fn listing<T: DeserializeOwned>(&self, path: &str, skips: bool) -> Result<Vec<T>, ForgeError> {
        let size = if self.kind == ForgeKind::Gitea { "limit" } else { "per_page" };
        let joint = if path.contains('?') { '&' } else { '?' };
        let mut all = Vec::new();
        let (mut page, mut read) = (1, 0);
        while read < MAX_PAGES {
            let at = format!("{path}{joint}{size}={PAGE}&page={page}");
            let answer = self.call(Method::GET, &at, None).await?;
            let found: Vec<T> = self.read(&at, &answer.body)?;
            read += 1;
            let is_last = found.len() < PAGE;
            all.extend(found);
            if is_last {
                return Ok(all);
            }
            let skipped_to =
                answer.last.filter(|_| skips && page == 1).map_or(0, |last| (last + 2).saturating_sub(MAX_PAGES));
            page = skipped_to.max(page + 1);
        }
        tracing::debug!(api = self.api, path, read = all.len(), "the forge lists more than is read");
        Ok(all)
    }
}

/// The number of a listing's last page: `<https://…?page=7>; rel="last"` among the links.
pub(super) fn last_page(links: &str) -> Option<u32> {
    let last = links.split(',').find(|link| link.contains("rel=\"last\""))?;
    let query = last.split_once('?')?.1.split('>').next()?;
    query.split('&').find_map(|pair| pair.strip_prefix("page="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_stands_among_the_links() {
        let links = r#"<https://h/x?page=2&per_page=50>; rel="next", <https://h/x?per_page=50&page=14>; rel="last""#;
        assert_eq!(last_page(links), Some(14));
        for none in ["", "x", r#"<https://h/x?page=2>; rel="next""#, r#"<https://h/x?page=z>; rel="last""#] {
            assert_eq!(last_page(none), None, "{none}");
        }
    }
}
