package org.apache.flink.connector.file.src.assigners;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.TreeSet;
import org.apache.flink.connector.file.src.FileSourceSplit;

/**
 * Hands files out by their names. Flink's own class of this name hands them out in no order, so that
 * most rows of windows over event time would be late; the default of its table source cannot be
 * chosen, so this class takes the place of that one.
 */
public class LocalityAwareSplitAssigner implements FileSplitAssigner {

    private final TreeSet<FileSourceSplit> waiting =
            new TreeSet<>(
                    Comparator.comparing((FileSourceSplit split) -> split.path().toString())
                            .thenComparing(FileSourceSplit::offset)
                            .thenComparing(FileSourceSplit::splitId));

    public LocalityAwareSplitAssigner(Collection<FileSourceSplit> splits) {
        waiting.addAll(splits);
    }

    @Override
    public Optional<FileSourceSplit> getNext(String host) {
        return Optional.ofNullable(waiting.pollFirst());
    }

    @Override
    public void addSplits(Collection<FileSourceSplit> splits) {
        waiting.addAll(splits);
    }

    @Override
    public Collection<FileSourceSplit> remainingSplits() {
        List<FileSourceSplit> left = new ArrayList<>(waiting);
        return left;
    }
}
