package ginlock

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/idempotency"
)

var (
	errTooLarge = errors.New("ginlock: the request's body is too large")
	errGone     = errors.New("ginlock: a middleware outside has read the body: let it put the body back, or read it by ShouldBindBodyWith, or use it inside")
)

// readBody reads the body once and puts it back. Where a middleware has read it for ShouldBindBodyWith, that copy is
// it: what is left to read would be empty.
func (m *middleware) readBody(c *gin.Context) ([]byte, error) {
	if v, ok := c.Get(gin.BodyBytesKey); ok {
		if body, ok := v.([]byte); ok && body != nil {
			if len(body) > m.maxRequestBody {
				return nil, errTooLarge
			}
			return body, nil
		}
	}
	r := c.Request
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if again, ok := r.Body.(*restored); ok && again.Len() == len(again.body) && len(again.body) <= m.maxRequestBody {
		return again.body, nil // for the key, or by another middleware of this package
	}
	if r.ContentLength > int64(m.maxRequestBody) {
		return nil, errTooLarge
	}
	body, err := readAll(r.Body, int(r.ContentLength), m.maxRequestBody)
	if err != nil {
		return nil, err
	}
	if len(body) == 0 && r.ContentLength > 0 && !parsed(r) {
		return nil, errGone
	}
	if len(body) == 0 {
		return nil, nil // whoever parsed the form knows its length
	}
	r.Body = &restored{bytes.NewReader(body), r.Body, body}
	r.ContentLength, r.TransferEncoding = int64(len(body)), nil
	return body, nil
}

const (
	firstRead  = 32 << 10
	readGrowth = 8
)

// readAll reads up to limit bytes. It takes the length that the client announced (-1: none) for true only as far as it
// has shown it: whoever sends a header and no body gets no memory for it.
func readAll(r io.Reader, announced, limit int) ([]byte, error) {
	size := firstRead
	if announced >= 0 {
		size = min(size, announced+1) // one more, so that its end is seen without growing
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
			body = append(make([]byte, 0, max(min(size, limit+1), len(body)+1)), body...)
		}
	}
}

// restored is a body that was read before.
type restored struct {
	*bytes.Reader
	io.Closer
	body []byte
}

// refuseBody answers a request whose body could not be read.
func (m *middleware) refuseBody(c *gin.Context, err error) {
	var outside *http.MaxBytesError
	switch {
	case err == errGone:
		m.misconfigured(c, "ginlock: what the request asks for is not known", "error", err)
	case errors.Is(err, errTooLarge) || errors.As(err, &outside):
		m.refuse(c, problemTooLarge)
	case errors.Is(err, os.ErrDeadlineExceeded):
		m.refuse(c, problemTimeout)
	default:
		m.refuse(c, problemUnreadable)
	}
}

// fingerprint is what a retry must repeat, unless [Fingerprint] says otherwise.
func fingerprint(c *gin.Context, body []byte) []byte {
	r := c.Request
	parts := [][]byte{[]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery)}
	if len(body) == 0 && parsed(r) {
		parts = append(parts, []byte("parsed"), formDigest(r))
	} else if form := multipartDigest(r.Header.Get("Content-Type"), body); form != nil {
		parts = append(parts, []byte("multipart"), form)
	} else {
		parts = append(parts, []byte(r.Header.Get("Content-Type")), body)
	}
	sum := idempotency.Digest(parts...)
	return sum[:]
}

// parsed says whether a middleware outside has parsed the body as a form, as those against CSRF do: nothing is left to
// read then.
func parsed(r *http.Request) bool {
	if r.MultipartForm != nil {
		return r.ParseMultipartForm(0) == nil // an error where somebody has read it by MultipartReader, and nothing is left
	}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return r.PostForm != nil && media == "application/x-www-form-urlencoded"
}

// formDigest digests a parsed form.
func formDigest(r *http.Request) []byte {
	values := r.PostForm
	var parts [][]byte
	if f := r.MultipartForm; f != nil {
		values = url.Values(f.Value)
		for _, name := range slices.Sorted(maps.Keys(f.File)) {
			for _, file := range f.File[name] {
				parts = append(parts, []byte(name), []byte(file.Filename), headerDigest(http.Header(file.Header)), fileDigest(file))
			}
		}
	}
	sum := idempotency.Digest(append(parts, []byte(values.Encode()))...)
	return sum[:]
}

func fileDigest(file *multipart.FileHeader) []byte {
	h := sha256.New()
	f, err := file.Open()
	if err == nil {
		defer f.Close()
		_, err = io.Copy(h, f)
	}
	if err != nil { // another file then: refused rather than replayed
		return []byte(rand.Text())
	}
	return h.Sum(nil)
}

// maxParts is how many parts of a form net/http reads.
const maxParts = 1000

// multipartDigest digests a form by its parts, since clients choose a new boundary for each try; nil where body is no
// form that can be read to its end, or has more parts than handlers read: the small ones cost a hundred times their bytes.
func multipartDigest(contentType string, body []byte) []byte {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil || !strings.HasPrefix(media, "multipart/") || params["boundary"] == "" {
		return nil
	}
	parts, buffer := [][]byte{[]byte(media)}, make([]byte, 4<<10)
	for r := multipart.NewReader(bytes.NewReader(body), params["boundary"]); ; {
		p, err := r.NextRawPart()
		if err == io.EOF {
			sum := idempotency.Digest(parts...)
			return sum[:]
		}
		if err != nil || len(parts) > 2*maxParts {
			return nil
		}
		content := sha256.New()
		if _, err := io.CopyBuffer(content, p, buffer); err != nil {
			return nil
		}
		parts = append(parts, headerDigest(http.Header(p.Header)), content.Sum(nil))
	}
}

func headerDigest(h http.Header) []byte {
	var parts [][]byte
	for name, values := range h {
		sum := idempotency.Digest([]byte(name), []byte(strings.Join(values, "\x00")))
		parts = append(parts, sum[:])
	}
	slices.SortFunc(parts, bytes.Compare)
	sum := idempotency.Digest(parts...)
	return sum[:]
}
