//! The body of a response, which holds the permit until it has ended.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::permit_handle::SharedPermit;

pin_project! {
    /// The body of a response to a limited request: the service's, or one that says why the request was refused.
    ///
    /// It holds the request's permit until it has ended, has failed or is dropped, for example because the client is
    /// gone. Frames, trailers and the size pass through unchanged.
    #[derive(Debug)]
    pub struct LimitBody<B> {
        // Before the permit, so that the service's body is dropped before another request gets the place.
        #[pin]
        content: Content<B>,
        held: Option<SharedPermit>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = ContentProjection]
    enum Content<B> {
        Service { #[pin] body: B },
        // Taken when sent; `None` if there is nothing to send.
        Problem { text: Option<String> },
    }
}

impl<B> LimitBody<B> {
    /// The service's body, under the permit.
    pub(super) fn new(body: B, held: Option<SharedPermit>) -> Self {
        Self {
            content: Content::Service { body },
            held,
        }
    }

    /// The body of an answer in place of the service.
    pub(super) fn problem(text: String) -> Self {
        Self {
            content: Content::Problem {
                text: Some(text).filter(|text| !text.is_empty()),
            },
            held: None,
        }
    }
}

/// An empty body that holds nothing, for layers that answer in place of a service.
impl<B: Default> Default for LimitBody<B> {
    fn default() -> Self {
        Self::new(B::default(), None)
    }
}

impl<B> Body for LimitBody<B>
where
    B: Body,
    B::Data: From<String>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        match this.content.project() {
            ContentProjection::Problem { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into()))))
            }
            ContentProjection::Service { mut body } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                if let (Some(Err(_)), Some(held)) = (&frame, &*this.held) {
                    held.note_failure();
                }
                // A body that reports its end is not always polled again.
                if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
                    *this.held = None;
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Service { body } => body.is_end_stream(),
            Content::Problem { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Service { body } => body.size_hint(),
            Content::Problem { text } => SizeHint::with_exact(text.as_ref().map_or(0, String::len) as u64),
        }
    }
}
