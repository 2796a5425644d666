package idempotency

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/onelane/onelane/internal/claim"
)

// fingerprintOf returns everything that a retry must repeat, except the credentials.
func (f *front) fingerprintOf(r *http.Request, body []byte) claim.Fingerprint {
	h := r.Header
	contentType := h.Get("Content-Type")
	var content [sha256.Size]byte
	isForm := len(body) == 0 && parsed(r)
	if f.fingerprint != nil {
		if isForm && r.MultipartForm == nil {
			body = []byte(r.PostForm.Encode()) // whoever parsed the form has read the body
		}
		content = claim.Digest([]byte("function"), f.fingerprint(r, body))
	} else if isForm {
		content, contentType = claim.Digest([]byte("parsed"), formDigest(r)), ""
	} else if form := multipartDigest(contentType, body); form != nil {
		content, contentType = claim.Digest([]byte("multipart"), form), "" // its boundary changes
	} else {
		content = claim.Digest(body)
	}
	parts := claim.Parts{
		claim.Method: claim.DigestText(r.Method),
		claim.Path:   claim.DigestText(decodeUnreserved(mount(r) + r.URL.EscapedPath())),
		claim.Body:   content,
	}
	if f.fingerprint == nil {
		parts[claim.Query] = claim.DigestText(r.URL.RawQuery)
		parts[claim.Headers] = claim.DigestText(contentType, h.Get("Content-Encoding"))
	}
	for _, name := range f.fingerprintHeaders {
		more := headerDigest(http.Header{name: h[name]})
		parts[claim.Headers] = claim.Digest(parts[claim.Headers][:], more)
	}
	fp := claim.FingerprintOf(parts)
	fp.Host, fp.AnyHost = claim.DigestText(normalHost(r.Host)), f.anyHost
	return fp
}

// parsed reports whether an outer middleware has parsed the body as a form, as CSRF middlewares do.
func parsed(r *http.Request) bool {
	if r.MultipartForm != nil {
		return r.ParseMultipartForm(0) == nil // an error after MultipartReader
	}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return r.PostForm != nil && media == "application/x-www-form-urlencoded"
}

// formDigest returns a digest of a parsed form.
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
	sum := claim.Digest(append(parts, []byte(values.Encode()))...)
	return sum[:]
}

func fileDigest(file *multipart.FileHeader) []byte {
	h := sha256.New()
	f, err := file.Open()
	if err == nil {
		defer f.Close()
		_, err = io.Copy(h, f)
	}
	if err != nil { // better refused than replayed
		return []byte(rand.Text())
	}
	return h.Sum(nil)
}

// maxParts is how many parts of a form net/http reads.
const maxParts = 1000

// multipartDigest returns a digest of a form by its parts, because clients choose a new boundary
// for each try. It returns nil if the body is no form that can be read to its end, or has text before
// or after the form. It also returns nil if the form has more parts than handlers read:
// small parts cost a hundred times their bytes.
func multipartDigest(contentType string, body []byte) []byte {
	if !strings.Contains(strings.ToLower(contentType), "multipart/") {
		return nil // most requests
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil || !strings.HasPrefix(media, "multipart/") || params["boundary"] == "" {
		return nil
	}
	boundary := params["boundary"]
	first, _, _ := bytes.Cut(bytes.TrimLeft(body, "\r\n"), []byte("\n"))
	rest, begins := bytes.CutPrefix(first, []byte("--"+boundary))
	begins = begins && len(bytes.Trim(bytes.TrimPrefix(rest, []byte("--")), " \t\r")) == 0
	if _, after, _ := bytes.Cut(body, []byte("--"+boundary+"--")); !begins || len(bytes.TrimSpace(after)) > 0 {
		return nil
	}
	delete(params, "boundary")
	parts, buffer := [][]byte{[]byte(mime.FormatMediaType(media, params))}, make([]byte, 4<<10)
	for r := multipart.NewReader(bytes.NewReader(body), boundary); ; {
		p, err := r.NextRawPart()
		if err == io.EOF {
			sum := claim.Digest(parts...)
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
		sum := claim.Digest([]byte(name), []byte(strings.Join(values, "\x00")))
		parts = append(parts, sum[:])
	}
	slices.SortFunc(parts, bytes.Compare)
	sum := claim.Digest(parts...)
	return sum[:]
}
