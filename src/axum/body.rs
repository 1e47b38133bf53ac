//! Body of a response that passed through a layer: the service's body, or the complete text of a denial. This enum lets
//! a denial fit any service without requiring that its body type can be built from a text.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ::axum::body::Bytes;
use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::body_meter::BodyMeter;

pin_project! {
    /// Body of a response that passed through a [`RateLimitLayer`](super::RateLimitLayer): the service's, or a
    /// denial's.
    pub struct RateLimitBody<B> {
        #[pin]
        body: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<B> {
        // `meter` is present if the bytes are charged.
        Passed { #[pin] body: B, meter: Option<Box<BodyMeter>> },
        // `None` if it is empty or was read.
        Own { text: Option<Bytes> },
    }
}

impl<B> RateLimitBody<B> {
    pub(super) fn passed(body: B, meter: Option<Box<BodyMeter>>) -> Self {
        Self { body: Kind::Passed { body, meter } }
    }

    pub(super) fn own(text: Bytes) -> Self {
        Self { body: Kind::Own { text: Some(text).filter(|text| !text.is_empty()) } }
    }
}

impl<B> Body for RateLimitBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().body.project() {
            KindProjection::Passed { mut body, meter } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                if let Some(body_meter) = meter {
                    if let Some(Ok(frame)) = &frame
                        && let Some(data) = frame.data_ref()
                    {
                        body_meter.add(data.remaining());
                    }
                    // Settled before the last frame is sent: a client that has the whole body may send its next request
                    // immediately, on another connection.
                    if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
                        *meter = None;
                    }
                }
                Poll::Ready(frame)
            }
            KindProjection::Own { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Kind::Passed { body, .. } => body.is_end_stream(),
            Kind::Own { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Kind::Passed { body, .. } => body.size_hint(),
            Kind::Own { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

/// An empty body, which layers require that build responses of their own.
impl<B> Default for RateLimitBody<B> {
    fn default() -> Self {
        Self::own(Bytes::new())
    }
}

impl<B> fmt::Debug for RateLimitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitBody").finish_non_exhaustive()
    }
}
