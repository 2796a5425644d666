package idempotency

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

var (
	errTooLarge = errors.New("the request's body is too large")
	errGone     = errors.New("the body is gone: if a middleware outside of this one has read it, let it put the body back and set ContentLength, or move it inside; " +
		"if a middleware outside has wrapped an empty body, let the client send Content-Length: 0")
)

// readBody reads the body and puts it back.
func (f *front) readBody(r *http.Request) ([]byte, error) {
	if body := f.router.body(r); body != nil {
		if len(body) > f.maxRequestBody {
			return nil, errTooLarge
		}
		return body, nil
	}
	if r.Body == nil || r.Body == http.NoBody {
		if missing(r, nil) {
			return nil, errGone
		}
		return nil, nil
	}
	// It was read for the key, or by another middleware of this package.
	if again, ok := r.Body.(*restored); ok && again.Len() == len(again.body) && len(again.body) <= f.maxRequestBody {
		return again.body, nil
	}
	if r.ContentLength > int64(f.maxRequestBody) {
		return nil, errTooLarge
	}
	fresh := r.ContentLength < 0 && unread(r.Body)
	body, err := readAll(r.Body, int(r.ContentLength), f.maxRequestBody)
	switch {
	case err != nil:
		return nil, err
	case !(fresh && len(body) == 0) && missing(r, body):
		return nil, errGone
	case len(body) == 0 && parsed(r):
		return nil, nil
	}
	again := &restored{Closer: r.Body, body: body}
	again.Reset(body)
	r.Body = again
	r.ContentLength, r.TransferEncoding = int64(len(body)), nil
	return body, nil
}

// missing reports whether body is less than what was sent. An unpacked body may be shorter. A
// middleware outside that unpacks it removes the headers.
func missing(r *http.Request, body []byte) bool {
	if len(body) == 0 {
		return r.ContentLength != 0 && !parsed(r)
	}
	packed := r.Header.Get("Content-Encoding") != "" || r.Header.Get("Content-Length") == ""
	return int64(len(body)) < r.ContentLength && !packed
}

const (
	firstRead  = 32 << 10 // if the client announced a length
	chunkRead  = 1 << 10  // most bodies of unknown length are short, and are kept while the handler runs
	readGrowth = 8
)

// readAll reads up to limit bytes. The announced length is -1 if there is none. A client that
// announces a long body and sends none must not cost memory for it.
func readAll(r io.Reader, announced, limit int) ([]byte, error) {
	size := chunkRead
	if announced >= 0 {
		size = min(firstRead, announced+1) // room to see the end without growing
	}
	body := make([]byte, 0, size)
	for {
		n, err := r.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > limit:
			return nil, errTooLarge
		case err == io.EOF:
			return body, nil
		case err != nil:
			return nil, err
		}
		if len(body) == cap(body) {
			size = 2 * len(body)
			if announced >= len(body) {
				size = min(announced+1, readGrowth*len(body))
			}
			body = append(make([]byte, 0, max(min(size-1, limit), len(body))+1), body...)
		}
	}
}

// rewind puts the body and the forms back as they are in unread, a copy from before Recover read
// them.
func rewind(r, unread *http.Request) {
	if f := r.MultipartForm; f != nil && f != unread.MultipartForm {
		_ = f.RemoveAll() // the handler parses the body again
	}
	r.Body, r.Form, r.PostForm, r.MultipartForm = unread.Body, unread.Form, unread.PostForm, unread.MultipartForm
	if b, ok := r.Body.(*restored); ok {
		b.Reset(b.body)
	}
}

// restored is a body that was read and put back.
type restored struct {
	bytes.Reader
	io.Closer
	body []byte
}
