//! Tests of declarations as a whole.
