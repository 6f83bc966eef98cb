//! Records as bytes: `MessagePack` with named fields, behind one byte that says which schema it is.
//!
//! Fields may be added with a default without a new version; a change that old programs would misread needs one.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The schema that this program writes, and the only one so far.
const SCHEMA: u8 = 1;

/// Why bytes are not a record.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// There are none.
    #[error("it is empty")]
    Empty,
    /// A newer program wrote it.
    #[error("it has schema {0}, and this program knows up to {SCHEMA}: update the program, then replay it")]
    Newer(u8),
    /// The bytes are not of that schema.
    #[error("it is damaged: {0}")]
    Damaged(#[from] rmp_serde::decode::Error),
    /// The description that is kept beside it is no text.
    #[error("its description is damaged: it is not UTF-8")]
    Description,
}

/// Writes a value.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    let mut bytes = Vec::new();
    encode_into(&mut bytes, value)?;
    Ok(bytes)
}

/// Writes a value behind other bytes.
pub fn encode_into<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), rmp_serde::encode::Error> {
    bytes.reserve(1024);
    bytes.push(SCHEMA);
    let mut serializer = rmp_serde::Serializer::new(bytes).with_struct_map();
    value.serialize(&mut serializer)
}

/// Reads a value.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    match bytes.split_first() {
        None => Err(DecodeError::Empty),
        Some((&SCHEMA, payload)) => Ok(rmp_serde::from_slice(payload)?),
        Some((&schema, _)) if schema > SCHEMA => Err(DecodeError::Newer(schema)),
        Some(_) => Err(DecodeError::Damaged(rmp_serde::decode::Error::Uncategorized("an unknown schema".to_owned()))),
    }
}

/// What could be decoded, and what could not and is to be set aside, each in its order.
pub(crate) fn apart<T, E>(decoded: impl IntoIterator<Item = Result<T, E>>) -> (Vec<T>, Vec<E>) {
    let (mut good, mut broken) = (Vec::new(), Vec::new());
    for one in decoded {
        match one {
            Ok(one) => good.push(one),
            Err(one) => broken.push(one),
        }
    }
    (good, broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let bytes = encode(&vec![1_u32, 2]).unwrap();
        assert_eq!(decode::<Vec<u32>>(&bytes).unwrap(), [1, 2]);
        assert!(matches!(decode::<Vec<u32>>(&[]), Err(DecodeError::Empty)));
        assert!(matches!(decode::<Vec<u32>>(&[9, 0]), Err(DecodeError::Newer(9))));
        assert!(matches!(decode::<Vec<u32>>(&[0, 0]), Err(DecodeError::Damaged(_))));
        assert!(matches!(decode::<Vec<u32>>(&[1, 0xc1]), Err(DecodeError::Damaged(_))));
    }
}
