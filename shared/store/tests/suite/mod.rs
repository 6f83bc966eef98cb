//! What every engine of the store must do, as plain functions over a [`kit::Harness`].

pub(crate) mod kit;
pub(crate) mod submitting;
pub(crate) mod working;
pub(crate) mod landing;
pub(crate) mod pausing;
pub(crate) mod deciding;
pub(crate) mod damage;
pub(crate) mod watching;
