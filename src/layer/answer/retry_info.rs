//! The details of a gRPC status: a `google.rpc.Status` with a `google.rpc.RetryInfo`, as in the field
//! `grpc-status-details-bin`.
//!
//! Two messages of a few fields, written by hand: no code is generated and no crate is needed for them.

use std::time::Duration;

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// The longest duration that `google.protobuf.Duration` allows, in seconds.
const LONGEST: u64 = 315_576_000_000;

/// A status with the time after which to try again, in Base64.
pub(super) fn with_retry_info(code: u64, message: &str, retry_after: Duration) -> String {
    let mut delay = Message::default();
    delay.integer(1, retry_after.as_secs().min(LONGEST));
    delay.integer(2, u64::from(retry_after.subsec_nanos()));
    let mut retry_info = Message::default();
    retry_info.bytes(1, &delay.0);
    let mut any = Message::default();
    any.bytes(1, RETRY_INFO.as_bytes());
    any.bytes(2, &retry_info.0);
    let mut status = Message::default();
    status.integer(1, code);
    status.bytes(2, message.as_bytes());
    status.bytes(3, &any.0);
    base64(&status.0)
}

/// A message in the encoding of protocol buffers.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    /// A field of an integer type. Zero is left out, because that is what its absence means.
    fn integer(&mut self, field: u8, value: u64) {
        if value > 0 {
            self.0.push(field << 3);
            self.number(value);
        }
    }

    /// A field of strings, bytes or a message.
    fn bytes(&mut self, field: u8, content: &[u8]) {
        self.0.push(field << 3 | 2);
        self.number(content.len() as u64);
        self.0.extend_from_slice(content);
    }

    /// Seven bits in each byte, the lowest first; all but the last byte have the eighth bit.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// Base64 without padding, as gRPC sends binary fields.
fn base64(content: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(content.len().div_ceil(3) * 4);
    for group in content.chunks(3) {
        let bytes = [0, 1, 2].map(|index| u32::from(group.get(index).copied().unwrap_or(0)));
        let bits = bytes[0] << 16 | bytes[1] << 8 | bytes[2];
        // One digit more than there are bytes: the others would only be zero.
        for index in 0..=group.len() {
            let digit = (bits >> (18 - 6 * index)) & 63;
            text.push(char::from(DIGITS[digit as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_its_specification() {
        // The examples of RFC 4648, without the padding.
        let expected = ["", "Zg", "Zm8", "Zm9v", "Zm9vYg", "Zm9vYmE", "Zm9vYmFy"];
        for (length, text) in expected.into_iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..length]), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }

    #[test]
    fn a_status_is_encoded_as_protocol_buffers_are() {
        let expected = [
            &b"\x08\x08\x12\x02no\x1a\x34\x0a\x28"[..],
            RETRY_INFO.as_bytes(),
            b"\x12\x08\x0a\x06\x08\xac\x02\x10\x80\x01",
        ]
        .concat();
        let encoded = with_retry_info(8, "no", Duration::new(300, 128));
        assert_eq!(encoded, base64(&expected));
    }
}
