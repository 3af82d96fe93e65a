package sluicebench;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.LongBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;
import org.apache.flink.connector.file.src.reader.SimpleStreamFormat;
import org.apache.flink.connector.file.src.reader.StreamFormat;
import org.apache.flink.core.fs.FSDataInputStream;

/**
 * Rows of longs in big-endian files, as long[]: Flink's Python package has no Parquet reader, and
 * nothing is cheaper to read than this.  Compiled by Janino, so without generics and lambdas.
 */
public class Rows extends SimpleStreamFormat {
    private final int width;

    public Rows(int width) {
        this.width = width;
    }

    public StreamFormat.Reader createReader(Configuration configuration, FSDataInputStream in) {
        return new Reader(in, width);
    }

    public TypeInformation getProducedType() {
        return PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO;
    }

    public static class Reader implements StreamFormat.Reader {
        private final DataInputStream in;
        private final byte[] bytes;
        private final LongBuffer longs;

        Reader(FSDataInputStream in, int width) {
            this.in = new DataInputStream(new BufferedInputStream(in, 1 << 18));
            this.bytes = new byte[8 * width];
            this.longs = ByteBuffer.wrap(bytes).asLongBuffer();
        }

        public Object read() throws IOException {
            try {
                in.readFully(bytes);
            } catch (EOFException end) {
                return null;
            }
            long[] row = new long[bytes.length / 8];
            longs.rewind();
            longs.get(row);
            return row;
        }

        public void close() throws IOException {
            in.close();
        }
    }

    /** Files in the order of their names: event time then only grows in every reader. */
    public static class InOrder implements FileSplitAssigner.Provider {
        public FileSplitAssigner create(Collection splits) {
            Assigner assigner = new Assigner();
            assigner.addSplits(splits);
            return assigner;
        }
    }

    public static class Assigner implements FileSplitAssigner {
        private final ArrayDeque waiting = new ArrayDeque();

        public Optional getNext(String hostname) {
            return Optional.ofNullable(waiting.poll());
        }

        public void addSplits(Collection splits) {
            List sorted = new ArrayList(splits);
            Collections.sort(sorted, new ByPath());
            waiting.addAll(sorted);
        }

        public Collection remainingSplits() {
            return new ArrayList(waiting);
        }
    }

    public static class ByPath implements Comparator {
        public int compare(Object one, Object other) {
            return path(one).compareTo(path(other));
        }

        private static String path(Object split) {
            return ((FileSourceSplit) split).path().toString();
        }
    }
}
